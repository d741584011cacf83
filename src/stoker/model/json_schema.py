"""Does a JSON value fit a JSON Schema? For schemas of the kind that msgspec makes of types.

It looks at types, choices, members, items and bounds, and leaves what it does not know (such as `format`) to the type
itself, which decodes the value in the end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_BOUNDS: Final[tuple[tuple[str, type | tuple[type, ...], Callable[[Any, Any], bool], str], ...]] = (
    ("minimum", (int, float), operator.ge, "at least"),
    ("maximum", (int, float), operator.le, "at most"),
    ("exclusiveMinimum", (int, float), operator.gt, "more than"),
    ("exclusiveMaximum", (int, float), operator.lt, "less than"),
)
_LENGTHS: Final = (("minLength", "maxLength", str), ("minItems", "maxItems", list))


def misfit(schema: Any, value: Any) -> str | None:
    """Why a value does not fit; None: nothing speaks against it."""
    return _Check(schema).misfit(schema, value, "")


class _Check:
    def __init__(self, root: Any) -> None:
        self._named = root.get("$defs", {}) if isinstance(root, Mapping) else {}

    def misfit(self, schema: Any, value: Any, path: str) -> str | None:
        if not isinstance(schema, Mapping):
            return None
        if isinstance(named := schema.get("$ref"), str):
            return self.misfit(self._named.get(named.rpartition("/")[2]), value, path)
        if "anyOf" in schema:
            found = [self.misfit(one, value, path) for one in schema["anyOf"]]
            return None if None in found else " or ".join(dict.fromkeys(filter(None, found)))
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if choices is not None:
            fits = any(type(one) is type(value) and one == value for one in choices)
            return None if fits else _must(path, f"be {' or '.join(map(repr, choices))}")
        kinds = schema.get("type", [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if kinds and all(kind in _TYPES and not _TYPES[kind](value) for kind in kinds):
            return _must(path, f"be of type {' or '.join(kinds)}")
        return _bounds(schema, value, path) or self._inside(schema, value, path)

    def _inside(self, schema: Mapping[str, Any], value: Any, path: str) -> str | None:
        """What is wrong with the first member or item that does not fit."""
        parts: list[tuple[Any, Any, str]] = []
        if isinstance(value, dict):
            known, others = schema.get("properties", {}), schema.get("additionalProperties")
            for name in schema.get("required", ()):
                if name not in value:
                    return _must(f"{path}.{name}", "be there")
            for name, one in value.items():
                if name not in known and others is False:
                    return _must(f"{path}.{name}", "not be there")
                parts.append((known.get(name, others), one, f"{path}.{name}"))
        elif isinstance(value, list):
            first: Sequence[Any] = schema.get("prefixItems", ())
            for n, one in enumerate(value):
                parts.append((first[n] if n < len(first) else schema.get("items"), one, f"{path}[{n}]"))
        return next(filter(None, (self.misfit(*part) for part in parts)), None)


def _bounds(schema: Mapping[str, Any], value: Any, path: str) -> str | None:
    for name, kinds, fits, words in _BOUNDS:
        if name in schema and isinstance(value, kinds) and not fits(value, schema[name]):
            return _must(path, f"be {words} {schema[name]}")
    for least, most, kind in _LENGTHS:
        if isinstance(value, kind) and not schema.get(least, 0) <= len(value) <= schema.get(most, len(value)):
            return _must(path, f"have {schema.get(least, 0)} to {schema.get(most, 'any number of')} parts")
    return None


def _must(path: str, what: str) -> str:
    return f"{path.removeprefix('.') or 'it'} must {what}"

"""The fields of a form for the answer to a wait, from its JSON Schema, and the answer from what was filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from stoker.model.errors import InvalidInput

Look: TypeAlias = Literal["yes or no", "text", "whole number", "number", "choice", "json"]

LOOKS: Final[dict[str, Look]] = {
    "boolean": "yes or no",
    "string": "text",
    "integer": "whole number",
    "number": "number",
}
WHOLE: Final = "value"
"""The name of the one field of an answer that has no fields of its own."""


class Field(NamedTuple):
    """One field of a form; `optional` ones may be left empty, and then stand for `default` or are left out."""

    name: str
    look: Look
    choices: tuple[str, ...] = ()
    default: str = ""
    optional: bool = False
    help: str = ""


def fields(schema: Any) -> list[Field]:
    """The fields of an answer: those of an object, or one for the whole of it."""
    whole = _resolved(schema, schema)
    named = whole.get("properties")
    if whole.get("type") != "object" or not isinstance(named, dict):
        return [_field(WHOLE, schema, schema, required=True)]
    required = whole.get("required", ())
    return [_field(name, one, schema, required=name in required) for name, one in named.items()]


def answer(schema: Any, given: Mapping[str, str]) -> Any:
    """The answer that was filled in; raises `InvalidInput` for what a field cannot hold."""
    wanted = fields(schema)
    found = {one.name: _read(one, given.get(one.name, "")) for one in wanted if not _left_out(one, given)}
    return found.get(WHOLE) if [one.name for one in wanted] == [WHOLE] and not _is_object(schema) else found


def _is_object(schema: Any) -> bool:
    return "properties" in _resolved(schema, schema)


def _left_out(field: Field, given: Mapping[str, str]) -> bool:
    return field.optional and field.look != "yes or no" and not given.get(field.name)


def _field(name: str, schema: Any, whole: Any, *, required: bool) -> Field:
    found = _resolved(schema, whole)
    kind, default = found.get("type"), found.get("default")
    shown = "" if default is None else default if isinstance(default, str) else msgspec.json.encode(default).decode()
    given = found.get("enum")
    choices = tuple(given) if isinstance(given, list) and all(isinstance(one, str) for one in given) else ()
    look = "choice" if choices else LOOKS.get(kind, "json") if isinstance(kind, str) else "json"
    return Field(name, look, choices, shown, not required, str(found.get("description", "")))


def _resolved(schema: Any, whole: Any) -> dict[str, Any]:
    """A schema, or the one among the definitions that it names."""
    for _ in range(10):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        place = str(schema["$ref"]).rpartition("/")[2]
        defaults = {name: value for name, value in schema.items() if name != "$ref"}
        known = whole.get("$defs", {}) if isinstance(whole, dict) else {}
        schema = {**known.get(place, {}), **defaults}
    return schema if isinstance(schema, dict) else {}


def _read(field: Field, text: str) -> Any:
    match field.look:
        case "yes or no":
            return text in {"yes", "true", "on"}
        case "text" | "choice":
            return text
        case look:
            try:
                found = msgspec.json.decode(text)
            except msgspec.MsgspecError:
                found = text
            number = isinstance(found, int | float) and not isinstance(found, bool)
            if look == "json" and found is not text:
                return found
            if (look == "number" and number) or (look == "whole number" and number and found == int(found)):
                return found
            raise InvalidInput(field.name, text, f"must be {'JSON' if look == 'json' else f'a {look}'}")

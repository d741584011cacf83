"""The fields of a form from a JSON Schema, and the value from what was filled in.

The answer to a wait is filled in so, and the arguments of a new job.
"""

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
FORMATS: Final = {
    "date-time": "as in 2026-11-16T14:00:00Z",
    "date": "as in 2026-11-16",
    "time": "as in 14:00:00Z",
    "duration": "as in PT5M",
    "uuid": "a UUID",
}
"""How a text of a format is written; schemas name them."""

EMPTY: Final = '""'
"""What stands for an empty text; a required field that was left empty is a mistake."""

WHOLE: Final = "value"
"""The name of the one field of an answer that has no fields of its own."""


class Field(NamedTuple):
    """One field of a form; `optional` ones may be left empty, and then stand for `default` or are left out.

    `choices` are shown, `values` are what they stand for. A `nullable` one that is not optional is null when empty.
    """

    name: str
    look: Look
    choices: tuple[str, ...] = ()
    default: str = ""
    optional: bool = False
    help: str = ""
    values: tuple[Any, ...] = ()
    nullable: bool = False


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
    found, wrong = filled(schema, given)
    for name, why in wrong.items():
        raise InvalidInput(name, given.get(name, ""), why)
    return found


def filled(schema: Any, given: Mapping[str, str]) -> tuple[Any, dict[str, str]]:
    """What was filled in, and by field why it cannot hold what was given."""
    wanted, found, wrong = fields(schema), dict[str, Any](), dict[str, str]()
    for one in wanted:
        if _left_out(one, given):
            continue
        try:
            found[one.name] = _read(one, given.get(one.name, ""))
        except InvalidInput as error:
            wrong[one.name] = error.why
    whole = [one.name for one in wanted] == [WHOLE] and not _is_object(schema)
    return (found.get(WHOLE) if whole else found), wrong


def _is_object(schema: Any) -> bool:
    return "properties" in _resolved(schema, schema)


def _left_out(field: Field, given: Mapping[str, str]) -> bool:
    return field.optional and (field.nullable or field.look != "yes or no") and not given.get(field.name)


def _field(name: str, schema: Any, whole: Any, *, required: bool) -> Field:
    found = _resolved(schema, whole)
    either = found.get("anyOf")
    nullable = isinstance(either, list) and len(either) == 2 and {"type": "null"} in either
    if nullable:
        [one] = [one for one in found["anyOf"] if one != {"type": "null"}]
        found = {**_resolved(one, whole), **{name: value for name, value in found.items() if name != "anyOf"}}
    kind, default = found.get("type"), found.get("default")
    shown = "" if default is None else default if isinstance(default, str) else msgspec.json.encode(default).decode()
    given = found.get("enum")
    values = tuple(given) if isinstance(given, list) else ()
    choices = tuple(one if isinstance(one, str) else msgspec.json.encode(one).decode() for one in values)
    look = "choice" if choices else LOOKS.get(kind, "json") if isinstance(kind, str) else "json"
    said = str(found.get("description", FORMATS.get(str(found.get("format")), "")))
    return Field(name, look, choices, shown, not required, said, values, nullable)


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
    if field.nullable and text in {"", "null"}:
        return None
    match field.look:
        case "yes or no":
            return text in {"yes", "true", "on"}
        case "text":
            if not text:
                raise InvalidInput(field.name, text, f"is empty; write {EMPTY} if you mean an empty text")
            return "" if text == EMPTY else text
        case "choice":
            if text not in field.choices:
                raise InvalidInput(field.name, text, f"must be one of {', '.join(field.choices)}")
            return field.values[field.choices.index(text)]
        case look:
            try:
                found = msgspec.json.decode(text)
            except (msgspec.MsgspecError, RecursionError):
                found = text
            number = isinstance(found, int | float) and not isinstance(found, bool)
            if look == "json" and found is not text:
                return found
            if (look == "number" and number) or (look == "whole number" and number and found == int(found)):
                return found
            raise InvalidInput(field.name, text, f"must be {'JSON' if look == 'json' else f'a {look}'}")

"""The form of an answer, made from its JSON Schema."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest

from stoker.model.answer_form import WHOLE, Field, answer, fields, filled
from stoker.model.errors import InvalidInput


class Approval(msgspec.Struct):
    yes: bool
    cents: int
    share: float = 0.5
    note: str = ""
    pay: Literal["card", "invoice"] = "card"
    tags: list[str] = []


class Outer(msgspec.Struct):
    inner: Approval


def of(kind: Any) -> Any:
    return msgspec.json.schema(kind)


@pytest.mark.spec("DURABLE-22")
def test_an_object_has_a_field_for_each_of_its_own() -> None:
    assert fields(of(Approval)) == [
        Field("yes", "yes or no"),
        Field("cents", "whole number"),
        Field("share", "number", (), "0.5", True),
        Field("note", "text", (), "", True),
        Field("pay", "choice", ("card", "invoice"), "card", True, values=("card", "invoice")),
        Field("tags", "json", (), "[]", True),
    ]
    given = {"yes": "yes", "cents": "7", "share": "", "note": "x", "pay": "invoice", "tags": '["a"]'}
    assert answer(of(Approval), given) == {"yes": True, "cents": 7, "note": "x", "pay": "invoice", "tags": ["a"]}
    assert msgspec.convert(answer(of(Approval), {"yes": "no", "cents": "0"}), Approval) == Approval(False, 0)
    assert [one.look for one in fields(of(Outer))] == ["json"]


@pytest.mark.spec("DURABLE-22")
@pytest.mark.parametrize(
    ("schema", "look", "text", "value"),
    [
        (of(bool), "yes or no", "yes", True),
        (of(bool), "yes or no", "no", False),
        (of(int), "whole number", "7", 7),
        (of(float), "number", "1.5", 1.5),
        (of(str), "text", "yes", "yes"),
        (of(str), "text", '""', ""),
        (of(str | None), "text", '""', ""),
        (of(Literal["a", "b"]), "choice", "b", "b"),
        (of(list[int]), "json", "[1]", [1]),
        (of(int | None), "whole number", "null", None),
        (of(int | None), "whole number", "", None),
        (of(int | None), "whole number", "7", 7),
        (of(int | str | None), "json", "7", 7),
        (of(bool | None), "yes or no", "", None),
        (None, "json", '{"a": 1}', {"a": 1}),
        ({"$ref": "#/$defs/None"}, "json", "1", 1),
        ({"enum": [1, 2]}, "choice", "1", 1),
        ({"type": "string", "format": "date"}, "text", "2026-11-16", "2026-11-16"),
    ],
)
def test_anything_else_is_one_field(schema: Any, look: str, text: str, value: Any) -> None:
    [found] = fields(schema)
    assert (found.name, found.look, found.optional) == (WHOLE, look, False)
    assert answer(schema, {WHOLE: text}) == value


@pytest.mark.spec("DURABLE-22")
@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (int, "1.5", "must be a whole number"),
        (int, "", "must be a whole number"),
        (str, "", 'is empty; write "" if you mean an empty text'),
        (float, "much", "must be a number"),
        (float, "true", "must be a number"),
        (list[int], "{", "must be JSON"),
        (list[int], "[" * 100_000, "must be JSON"),
        (Literal["a", "b"], "c", "must be one of a, b"),
    ],
)
def test_what_a_field_cannot_hold_is_refused(kind: Any, text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        answer(of(kind), {WHOLE: text})


@pytest.mark.spec("ENQUEUE-03")
def test_every_field_that_cannot_hold_what_was_given_is_named() -> None:
    found, wrong = filled(of(Approval), {"yes": "yes", "cents": "x", "share": "y", "pay": "cash"})
    assert found == {"yes": True}
    assert wrong == {
        "cents": "must be a whole number",
        "share": "must be a number",
        "pay": "must be one of card, invoice",
    }


@pytest.mark.spec("ENQUEUE-01")
def test_a_value_that_may_be_null_has_the_field_of_its_type() -> None:
    class Maybe(msgspec.Struct):
        when: date | None
        sure: bool | None = None
        inner: Approval | None = None
        size: Literal[1, 2] | None = 2

    assert fields(of(Maybe)) == [
        Field("when", "text", help="as in 2026-11-16", nullable=True),
        Field("sure", "yes or no", optional=True, nullable=True),
        Field("inner", "json", optional=True, nullable=True, help=""),
        Field("size", "choice", ("1", "2"), "2", True, "", (1, 2), True),
    ]
    assert answer(of(Maybe), {}) == {"when": None}
    assert answer(of(Maybe), {"when": "2026-11-16", "sure": "no", "size": "1"}) == {
        "when": "2026-11-16",
        "sure": False,
        "size": 1,
    }


@pytest.mark.spec("DURABLE-22")
def test_an_object_whose_one_field_is_called_value_stays_an_object() -> None:
    class Amount(msgspec.Struct):
        value: int

    class Nothing(msgspec.Struct):
        pass

    assert answer(of(Amount), {"value": "7"}) == {"value": 7}
    assert answer(of(Nothing), {}) == {}


@pytest.mark.spec("DURABLE-22")
@pytest.mark.parametrize(
    ("kind", "example"),
    [
        (Annotated[datetime, msgspec.Meta(tz=True)], "2026-11-16T14:00:00Z"),
        (date, "2026-11-16"),
        (Annotated[time, msgspec.Meta(tz=True)], "14:00:00Z"),
        (timedelta, "PT5M"),
        (UUID, None),
    ],
)
def test_a_field_shows_how_its_text_is_written(kind: Any, example: str | None) -> None:
    """The example is one that the type reads."""
    [field] = fields(of(kind))
    assert (field.look, field.help) == ("text", "a UUID" if example is None else f"as in {example}")
    if example is not None:
        msgspec.convert(example, kind)


def test_a_schema_that_names_itself_ends() -> None:
    assert fields({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}) == [Field(WHOLE, "json")]
    assert fields({"type": "object", "properties": {"a": 1}, "required": ["a"]}) == [Field("a", "json")]

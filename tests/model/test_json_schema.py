from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from stoker.model.json_schema import misfit


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Box(msgspec.Struct, forbid_unknown_fields=True):
    width: int
    label: str | None = None


class Tree(msgspec.Struct):
    name: str
    leaves: list[Tree] = []


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    tricks: list[str]


CASES: list[tuple[Any, list[Any], list[tuple[Any, str]]]] = [
    (bool, [True], [(1, "it must be of type boolean"), (None, "it must be of type boolean")]),
    (int, [1], [(1.5, "it must be of type integer"), (True, "it must be of type integer")]),
    (float, [1, 1.5], [("1", "it must be of type number"), (False, "it must be of type number")]),
    (str, [""], [(1, "it must be of type string")]),
    (None, [None], [(0, "it must be of type null")]),
    (list[int], [[], [1]], [({}, "it must be of type array"), ([1, "2"], "[1] must be of type integer")]),
    (tuple[int, str], [[1, "a"]], [([1, 2], "[1] must be of type string"), ([1], "it must have 2 to 2 parts")]),
    (dict[str, int], [{"a": 1}], [({"a": "b"}, "a must be of type integer"), ([], "it must be of type object")]),
    (int | None, [None, 3], [("3", "it must be of type integer or it must be of type null")]),
    (Literal["a", 1], ["a", 1], [(True, "it must be 1 or 'a'"), ("b", "it must be")]),
    (Colour, ["red"], [("green", "it must be 'blue' or 'red'")]),
    (
        Box,
        [{"width": 1}, {"width": 1, "label": None}],
        [
            ({}, "width must be there"),
            ({"width": 1, "height": 2}, "height must not be there"),
            ({"width": 1, "label": 5}, "label must be of type string or label must be of type null"),
        ],
    ),
    (
        Tree,
        [{"name": "a", "leaves": [{"name": "b"}]}],
        [({"name": "a", "leaves": [{}]}, "leaves[0].name must be there")],
    ),
    (Cat | Dog, [{"type": "cat", "lives": 9}], [({"type": "cow"}, "must be")]),
    (Annotated[int, msgspec.Meta(ge=1, lt=5)], [1, 4], [(0, "at least 1"), (5, "less than 5")]),
    (Annotated[int, msgspec.Meta(gt=1, le=5)], [2, 5], [(1, "more than 1"), (6, "at most 5")]),
    (Annotated[str, msgspec.Meta(min_length=2)], ["ab"], [("a", "it must have 2 to any number of parts")]),
    (Annotated[list[int], msgspec.Meta(max_length=1)], [[1]], [([1, 2], "it must have 0 to 1 parts")]),
    (Any, [None, 1, "a", [], {}], []),
]


@pytest.mark.spec("ANSWER-14")
@pytest.mark.parametrize(("kind", "good", "bad"), CASES, ids=lambda one: str(one)[:30])
def test_values_that_fit_a_type_fit_its_schema(kind: Any, good: list[Any], bad: list[tuple[Any, str]]) -> None:
    schema = msgspec.json.schema(kind)
    assert [value for value in good if misfit(schema, value) is not None] == []
    for value in good:
        msgspec.convert(value, kind)
    for value, why in bad:
        assert why in (misfit(schema, value) or ""), value
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(value, kind)


@pytest.mark.spec("ANSWER-14")
def test_what_is_not_known_of_a_schema_does_not_count() -> None:
    unknown: tuple[Any, ...] = (True, None, {"$ref": "#/$defs/gone"}, {"type": "colour", "format": "x"}, {"oneOf": []})
    for schema in unknown:
        assert misfit(schema, None) is None
    assert misfit({"type": ["null", "string"]}, "a") is None

"""Type hints of two handlers compared."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel

from stoker.codec.hints import check_previous, check_results, fits, named
from stoker.codec.signature import Signature
from stoker.model.errors import InvalidInput


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int


class Flat(msgspec.Struct, array_like=True):
    x: int


class Model(BaseModel):
    x: int


@dataclass
class Data:
    x: int


class Typed(TypedDict):
    x: int


FITS: list[tuple[Any, Any]] = [
    *((int, int), (int, float), (int, Decimal), (float, float), (int, int | str), (int, int | None), (bool, bool)),
    *((str, datetime), (datetime, str), (UUID, str), (timedelta, timedelta), (int, timedelta), (bytes, bytes)),
    *((list[int], list[float]), (set[int], list[int]), (tuple[int, ...], list[int]), (tuple[int, str], list[str])),
    *((dict[str, int], dict[str, float]), (Data, dict[str, Any]), (dict[str, Any], Data), (Typed, Data)),
    *((Point, list[int]), (Flat, list[int]), (Color, str), (Level, int), (Literal["a", 1], int | str)),
    *((Any, int), (int, Any), (Model, int), (int, Model), (msgspec.Raw, int), (int, object())),
]
FAILS: list[tuple[Any, Any]] = [
    *((int, str), (str, int), (float, int), (bool, int), (int, bool), (None, int), (int | None, int), (int | str, int)),
    *((list[int], list[str]), (list[int], int), (int, list[int]), (dict[str, int], dict[str, str]), (Data, list[int])),
    *((Color, int), (Level, str), (Literal["a", 1], str), (datetime, int), (Flat, Data), (str | None, datetime)),
]  # fmt: skip


@pytest.mark.spec("PASS-05")
@pytest.mark.parametrize(("given", "wanted"), FITS)
def test_types_that_fit(given: Any, wanted: Any) -> None:
    assert fits(given, wanted)


@pytest.mark.spec("PASS-05")
@pytest.mark.parametrize(("given", "wanted"), FAILS)
def test_types_that_do_not_fit(given: Any, wanted: Any) -> None:
    assert not fits(given, wanted)


def takes(n: int, *more: str, key: list[int], **others: float) -> int | None: ...


def untyped(n): ...  # type: ignore[no-untyped-def]  # noqa: ANN001 - that is the point


def says() -> str:
    return ""


def nothing() -> None: ...


@pytest.mark.spec("PASS-05")
def test_the_hint_of_a_place() -> None:
    hints = [Signature(takes).hint_of(place) for place in ("n", "*0", "*7", "key", "other")]
    assert hints == [int, str, str, list[int], float]
    assert Signature(untyped).hint_of("m") is Any
    assert Signature(untyped).result_hint is Any
    assert [named(one) for one in (int, list[int], int | None, Any)] == ["int", "list[int]", "int | None", "Any"]


@pytest.mark.spec("PASS-05")
def test_previous_is_compared_with_what_the_job_before_returns() -> None:
    check_previous(Signature(takes), ("*0",), Signature(says))
    check_previous(Signature(untyped), ("n",), Signature(says))
    check_previous(Signature(takes), ("n",), Signature(untyped))
    with pytest.raises(InvalidInput, match=r"takes\(n\): takes int, but PREVIOUS is the result of says, which is str;"):
        check_previous(Signature(takes), ("*0", "n"), Signature(says))
    with pytest.raises(InvalidInput, match=r"PREVIOUS: stands for the result of nothing, which returns None"):
        check_previous(Signature(untyped), ("n",), Signature(nothing))


@pytest.mark.spec("PASS-05")
def test_results_are_compared_with_what_members_return() -> None:
    callback = Signature(takes)
    check_results(callback, ("key",), None, may_fail=False)
    check_results(Signature(untyped), ("n",), Signature(says), may_fail=True)
    with pytest.raises(InvalidInput, match=r"takes\(n\): takes int, but RESULTS is a list;"):
        check_results(callback, ("n",), None, may_fail=False)
    with pytest.raises(InvalidInput, match=r"takes\(key\): takes list\[int\], but RESULTS is a list with the results"):
        check_results(callback, ("key",), Signature(says), may_fail=False)
    with pytest.raises(InvalidInput, match=r"but RESULTS has None for a member that failed"):
        check_results(callback, ("key",), None, may_fail=True)

"""Bodies to payloads and back."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest

from stoker.model.errors import InvalidInput, InvalidPayload, PayloadTooLarge
from stoker.model.ids import text
from stoker.model.outbox import stream as stored
from stoker.outbox.entries import BYTES, JSON, encode, reader
from stoker.outbox.message import Message


class Placed(msgspec.Struct):
    order: int
    note: str | None = None


class Paid(msgspec.Struct):
    order: int
    cents: int


@dataclasses.dataclass
class Sent:
    order: int
    at: datetime


class Refunded(pydantic.BaseModel):
    order: int


class Nested(msgspec.Struct):
    lines: list[Placed]


def make(body: Any, hint: Any = Any, kind: str | None = None) -> Message[Any]:
    payload, named, raw = encode(body, kind)
    found = stored.Message(bytes(16), "k", 3, 7, payload, named, 1_000_000, {"a": "b"}, raw, 2)
    return Message(found, "orders", reader(hint, "publish()"))


@pytest.mark.spec("PUBLISH-04")
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"\x00\xff", BYTES),
        (bytearray(b"x"), BYTES),
        ({"a": 1.5}, JSON),
        ([1], JSON),
        ("text", JSON),
        (7, JSON),
        (None, JSON),
        (Placed(1), "Placed"),
        (Nested([Placed(1)]), "Nested"),
        (Sent(1, datetime(2026, 1, 1, tzinfo=UTC)), "Sent"),
        (Refunded(order=1), "Refunded"),
    ],
)
def test_a_body_comes_back_with_its_type(body: Any, kind: str) -> None:
    plain = body is None or isinstance(body, bytes | bytearray | dict | list | str | int)
    found = make(body, Any if plain else type(body))
    assert found.type == kind
    assert found.body == body
    assert found.body is found.body
    assert make(body, Any, "my.type").type == "my.type"


@pytest.mark.spec("PUBLISH-04", "PUBLISH-05")
@pytest.mark.parametrize("body", [float("nan"), {"a": float("inf")}, {1: 2}, Placed(1, "\0"), object(), "\ud800"])
def test_what_json_would_change_is_refused(body: Any) -> None:
    with pytest.raises(InvalidPayload, match="Nothing was stored"):
        encode(body)


@pytest.mark.spec("PUBLISH-05")
def test_a_body_of_64_kib_passes_and_one_byte_more_does_not() -> None:
    assert len(encode("x" * 65_534)[0]) == 65_536
    with pytest.raises(PayloadTooLarge):
        encode("x" * 65_535)


@pytest.mark.spec("PUBLISH-06")
def test_of_a_union_the_type_decides() -> None:
    assert make(Paid(1, 2), Placed | Paid).body == Paid(1, 2)
    assert make(Placed(1), Placed | Paid).body == Placed(1)
    assert make(Placed(1), Placed | None).body == Placed(1)
    assert make(None, Placed | None).body is None
    assert make({"order": 3}, Placed | None).body == Placed(3)
    assert make(Refunded(order=1), Refunded | Sent).body == Refunded(order=1)
    assert make(b"raw", Placed | bytes).body == b"raw"
    with pytest.raises(InvalidPayload, match="must be one of Paid, Placed"):
        _ = make(Sent(1, datetime(2026, 1, 1, tzinfo=UTC)), Placed | Paid).body


@pytest.mark.spec("PUBLISH-06")
def test_a_misfit_names_the_handler_and_changes_nothing() -> None:
    with pytest.raises(InvalidPayload, match=r"publish\(\).*What is stored is unchanged"):
        _ = make({"order": "x"}, Placed).body
    with pytest.raises(InvalidPayload, match="raw bytes"):
        _ = make(b"x", Placed).body


@pytest.mark.spec("PUBLISH-06")
def test_a_hint_that_nothing_can_be_decoded_by_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"publish\(\).*Message\[Any\]"):
        reader(list[Placed | Paid], "publish()")
    with pytest.raises(InvalidInput, match=r"publish\(\)"):
        reader(Nested | Placed | dict[str, int], "publish()")


def test_a_message_shows_what_it_is() -> None:
    found = make(Placed(1), Placed)
    assert (found.id, found.partition, found.number, found.attempts) == (text(bytes(16)), 3, 7, 2)
    assert (found.stream, found.headers, found.created.year) == ("orders", {"a": "b"}, 1970)
    assert "orders/3:7" in repr(found)
    with pytest.raises(AttributeError):
        found.key = "other"  # type: ignore[misc]

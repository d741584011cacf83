"""A batch hands out in order and knows what is finished."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.errors import InvalidInput
from stoker.model.outbox import stream as stored
from stoker.outbox import Batch, Message


class Watch:
    def __init__(self) -> None:
        self.left = 10.0

    def __call__(self) -> float:
        return self.left


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def batch(watch: Watch) -> Batch[Any]:
    found = [stored.Message(bytes(16), "k", 0, n, b"1", "json", 0) for n in range(11, 17)]
    return Batch([Message(one, "s") for one in found], 0, 0, watch)


def numbers(messages: Any) -> list[int]:
    return [one.number for one in messages]


@pytest.mark.spec("DELIVER-02")
def test_handing_out_the_next_unit_finishes_the_one_before(batch: Batch[Any]) -> None:
    assert (len(batch), bool(batch), batch.processed, batch.in_hand) == (6, True, 0, 0)
    first = batch.next()
    assert first is not None
    assert (first.number, batch.processed, batch.in_hand, len(batch)) == (11, 0, 1, 5)
    assert numbers(batch.chunk(2)) == [12, 13]
    assert (batch.processed, batch.in_hand) == (1, 2)
    assert numbers(batch.rest()) == [14, 15, 16]
    assert (batch.processed, batch.in_hand, len(batch)) == (3, 3, 0)
    assert batch.rest() == []
    assert (batch.processed, bool(batch)) == (6, True)
    assert "0 left" in repr(batch)


@pytest.mark.spec("DELIVER-02")
def test_a_unit_can_be_finished_in_part(batch: Batch[Any]) -> None:
    chunk = batch.chunk(4)
    batch.done(chunk[1])
    assert (batch.processed, batch.in_hand) == (2, 2)
    with pytest.raises(InvalidInput, match="not done yet"):
        batch.done(chunk[0])
    with pytest.raises(InvalidInput, match="all before it are done"):
        batch.reject(chunk[3], "why")
    batch.reject(chunk[2], "why")
    assert [(one.number, one.reason) for one in batch.rejections] == [(13, "why")]
    batch.finish()
    assert batch.processed == 4
    batch.finish()
    assert batch.processed == 4


@pytest.mark.spec("DELIVER-02")
def test_only_what_was_handed_out_can_be_finished(batch: Batch[Any]) -> None:
    other: Message[Any] = Message(stored.Message(bytes(16), "k", 0, 12, b"1", "json", 0), "s")
    with pytest.raises(InvalidInput, match="handed out"):
        batch.done(other)
    with pytest.raises(InvalidInput, match="handed out"):
        batch.reject(other, "why")
    with pytest.raises(InvalidInput, match="at least 1"):
        batch.chunk(0)


@pytest.mark.spec("DELIVER-10")
def test_without_time_nothing_is_handed_out(batch: Batch[Any], watch: Watch) -> None:
    assert numbers(one for one in [batch.next()] if one) == [11]
    watch.left = -1.0
    assert batch.remaining == 0.0
    assert list(batch) == []
    assert batch.rest() == []
    assert (batch.processed, len(batch)) == (1, 5)


@pytest.mark.spec("DELIVER-10")
def test_a_closed_batch_changes_no_more(batch: Batch[Any]) -> None:
    chunk = batch.chunk(3)
    batch.done(chunk[0])
    batch.close()
    batch.done(chunk[1])
    batch.reject(chunk[1], "late")
    batch.finish()
    assert batch.next() is None
    assert (batch.processed, batch.rejections) == (1, ())

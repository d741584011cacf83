"""What may be appended, where it goes and which number it gets: OUTBOX-01 to OUTBOX-06 and OUTBOX-44."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.errors import InvalidInput, InvalidName, InvalidOption, PayloadTooLarge
from stoker.model.outbox.stream import (
    LARGEST_HEADERS,
    LARGEST_MESSAGE,
    Entry,
    Message,
    Stream,
    check_received,
    entry,
    numbered,
    numbers,
    partition_of,
    register,
    topic,
)
from stoker.model.time import HOUR, SECOND

ORDERS = Stream("orders", 16)
ID = bytes(16)
NOW = 1_750_000_000 * SECOND


@pytest.mark.spec("OUTBOX-01")
@pytest.mark.parametrize("partitions", [0, 3, 12, 65, 128, -2, True, "4", 2.0])
def test_partitions_are_a_power_of_two_up_to_64(partitions: int) -> None:
    with pytest.raises(InvalidOption):
        Stream("orders", partitions)
    assert [Stream("orders", 1 << n).partitions for n in range(7)] == [1, 2, 4, 8, 16, 32, 64]
    with pytest.raises(InvalidName):
        Stream("my orders")
    with pytest.raises(InvalidInput, match="keep"):
        Stream("orders", 1, -1)


@pytest.mark.spec("OUTBOX-02")
def test_registering_again_sets_keep_and_another_count_is_refused() -> None:
    assert register(None, ORDERS) == register(ORDERS, Stream("orders", 16)) == ORDERS
    assert register(ORDERS, Stream("orders", 16, HOUR)).keep == HOUR
    with pytest.raises(InvalidOption, match="has 16 already"):
        register(ORDERS, Stream("orders", 8))


@pytest.mark.spec("OUTBOX-03")
def test_keys_keep_their_partition_for_ever() -> None:
    """These values are stored in users' databases: a change of the hash would break their order."""
    assert [partition_of(key, 64) for key in ("", "a", "order-7", "émile")] == [35, 10, 31, 37]


@pytest.mark.spec("OUTBOX-03")
@given(
    key=st.text(st.characters(exclude_categories=["Cs"])),
    partitions=st.sampled_from([1, 2, 4, 8, 16, 32, 64]),
)
def test_a_key_meets_one_partition_and_doubling_splits_it(key: str, partitions: int) -> None:
    place = partition_of(key, partitions)
    assert 0 <= place < partitions
    assert place == partition_of(key, partitions)
    assert partition_of(key, min(partitions * 2, 64)) % partitions == place


@pytest.mark.spec("OUTBOX-03")
def test_keys_spread_evenly() -> None:
    hits = [0] * 64
    for n in range(6_400):
        hits[partition_of(f"order-{n}", 64)] += 1
    assert min(hits) > 50
    assert max(hits) < 150


@pytest.mark.spec("OUTBOX-04")
def test_a_message_is_addressed_by_key_or_by_partition() -> None:
    by_key = entry(ORDERS, "order-7", b"{}", "OrderPlaced", id=ID)
    assert by_key == Entry(ID, "order-7", partition_of("order-7", 16), b"{}", "OrderPlaced")
    assert entry(ORDERS, "order-7", b"", "t", id=ID, partition=15).partition == 15
    for wrong in (-1, 16, True, "1"):
        with pytest.raises(InvalidInput, match="0 to 15"):
            entry(ORDERS, "order-7", b"", "t", id=ID, partition=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        entry(ORDERS, "", b"", "t", id=ID)
    with pytest.raises(InvalidInput, match="512"):
        entry(ORDERS, "k" * 513, b"", "t", id=ID)


@pytest.mark.spec("OUTBOX-05")
def test_payloads_end_at_64_kib_exactly() -> None:
    assert len(entry(ORDERS, "k", bytes(LARGEST_MESSAGE), "t", id=ID).payload) == 65_536
    with pytest.raises(PayloadTooLarge, match="65537"):
        entry(ORDERS, "k", bytes(LARGEST_MESSAGE + 1), "t", id=ID)
    with pytest.raises(InvalidInput):
        entry(ORDERS, "k", "text", "t", id=ID)  # type: ignore[arg-type]


@pytest.mark.spec("OUTBOX-05")
@pytest.mark.parametrize("wrong", ["", "x" * 1_025, "tab\t", "é", "\x7f", None, 3])
def test_payload_types_are_printable_ascii(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="payload type"):
        entry(ORDERS, "k", b"", wrong, id=ID)
    for good in ("x" * 1_024, "application/json; v=1"):
        assert entry(ORDERS, "k", b"", good, id=ID).type == good


@pytest.mark.spec("OUTBOX-44")
@pytest.mark.parametrize(
    "wrong", [{"a": 1}, {1: "a"}, {"a": "\0"}, {"a": "\ud800"}, {"a": "x" * LARGEST_HEADERS}, {"a" * 8_193: ""}]
)
def test_headers_are_text_of_8_kib_in_all(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="headers"):
        entry(ORDERS, "k", b"", "t", id=ID, headers=wrong)
    full = {"a": "x" * (LARGEST_HEADERS - 1)}
    assert entry(ORDERS, "k", b"", "t", id=ID, headers=full).headers == full


@pytest.mark.spec("OUTBOX-05")
def test_one_bad_message_stops_the_whole_list_before_anything_is_stored() -> None:
    good, bad = b"{}", bytes(LARGEST_MESSAGE + 1)
    with pytest.raises(PayloadTooLarge):
        [entry(ORDERS, "k", payload, "t", id=ID) for payload in (good, bad, good)]


@pytest.mark.spec("OUTBOX-06")
@given(st.lists(st.integers(0, 1_000)))
def test_numbers_start_at_one_without_gap_or_repetition(steps: list[int]) -> None:
    given_, last = [0], 0
    for count in steps:
        fresh = numbers(last, count)
        given_ += [fresh[0], fresh[-1]] if count else []
        assert len(fresh) == count
        assert not count or fresh[0] == last + 1
        last += count
    assert given_[-1] == sum(steps)
    assert list(numbers(0, 3)) == [1, 2, 3]


@pytest.mark.spec("OUTBOX-44")
def test_a_numbered_message_carries_everything_that_was_appended() -> None:
    one = entry(ORDERS, "k", b"\0\xff", "t", id=ID, headers={"trace": "7"}, raw=True)
    message = numbered(one, 5, NOW)
    assert (message.number, message.created, message.attempts) == (5, NOW, 0)
    for field in one.__struct_fields__:
        assert getattr(message, field) == getattr(one, field)
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message


@pytest.mark.spec("OUTBOX-61")
def test_a_streams_topic_is_no_queues_name() -> None:
    assert topic("orders") == "~orders"
    with pytest.raises(InvalidName):
        Stream(topic("orders"))


@pytest.mark.spec("INBOX-03")
def test_an_inbox_remembers_texts_that_can_be_stored() -> None:
    check_received("billing", ["1", "2"])
    for source, ids in (("", ["1"]), ("billing", ["1", ""])):
        with pytest.raises(InvalidInput):
            check_received(source, ids)

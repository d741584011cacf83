from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model import ids
from stoker.model import job as job_module
from stoker.model.errors import InvalidInput, InvalidName, InvalidPayload, PayloadTooLarge
from stoker.model.job import (
    ACTIVE,
    FINISHED,
    LARGEST_BATCH,
    LARGEST_METADATA,
    LARGEST_PAYLOAD,
    LONGEST_HISTORY,
    MOST_ATTEMPTS,
    PLAIN,
    Draft,
    Failure,
    Job,
    Options,
    Settlement,
    Status,
    appended,
    check_ids,
    check_lease,
    check_metadata,
    check_name,
    noted,
    pack,
    portions,
    unpack,
)
from stoker.model.retry import DelayList, Exponential, Fixed, Linear, Never
from stoker.model.steps import Step
from stoker.model.throttle import Cool
from stoker.model.time import LATEST, LONGEST, SECOND
from stoker.model.unique import Unique

ID = b"0123456789abcdef"
SPANS = st.integers(0, LONGEST)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
BACKOFFS = st.one_of(
    st.none(),
    st.just(Never()),
    st.builds(Fixed, st.floats(0, 1e6), st.none() | st.integers(0, 99)),
    st.builds(Linear, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6)),
    st.builds(DelayList, st.lists(st.floats(0, 1e6), min_size=1, max_size=5).map(tuple)),
    st.builds(Exponential, st.floats(0, 1e6), st.floats(1, 1000), jitter=st.sampled_from(["none", "some", "full"])),
)
OPTIONS = st.builds(
    Options,
    backoff=BACKOFFS,
    timeout=st.none() | st.integers(1, LONGEST),
    expires=st.none() | SPANS,
    keep=st.none() | SPANS,
    metadata=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=5),
    isolation=st.sampled_from([None, "process"]),
)


def record(**changes: Any) -> Job:
    fields: dict[str, Any] = {
        "id": ID,
        "kind": "work",
        "queue": "default",
        "payload": b"{}",
        "status": Status.PENDING,
        "priority": 0,
        "attempts": 0,
        "base": 0,
        "budget": 5,
        "created_at": 0,
        "scheduled_at": 0,
    }
    return Job(**{**fields, **changes})


# --- drafts ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("INPUT-01")
def test_a_draft_asks_for_little() -> None:
    draft = Draft(ID, "work")
    assert (draft.queue, draft.priority, draft.delay, draft.at, draft.attempts) == ("default", 0, 0, None, 5)
    assert (draft.payload, draft.unique, draft.tenant, draft.options) == (b"{}", None, None, PLAIN)


@pytest.mark.spec("INPUT-01")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", ""),
        ("kind", "a b"),
        ("kind", "a/b"),
        ("kind", "-a"),
        ("kind", ".a"),
        ("kind", "é"),
        ("kind", "a\n"),
        ("kind", "x" * 129),
        ("kind", None),
        ("kind", 7),
        ("kind", ["work"]),
        ("queue", ""),
        ("queue", "a,b"),
        ("queue", "a\0"),
        ("queue", None),
        ("queue", {"a"}),
        ("job_id", b""),
        ("job_id", ID + b"x"),
        ("job_id", "0123456789abcdef"),
        ("job_id", None),
        ("payload", "{}"),
        ("payload", None),
        ("payload", {}),
        ("priority", -1001),
        ("priority", 1001),
        ("priority", float("nan")),
        ("priority", 0.5),
        ("priority", "1"),
        ("priority", None),
        ("delay", -1),
        ("delay", LONGEST + 1),
        ("delay", 0.5),
        ("delay", 0.0),
        ("delay", float("nan")),
        ("delay", "1"),
        ("at", -1),
        ("at", LATEST + 1),
        ("at", 0.5),
        ("at", "now"),
        ("attempts", 0),
        ("attempts", -1),
        ("attempts", MOST_ATTEMPTS + 1),
        ("attempts", 1.5),
        ("attempts", "5"),
        ("attempts", None),
        ("tenant", ""),
        ("tenant", "a\0"),
        ("tenant", 7),
        ("tenant", "x" * 513),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_an_impossible_draft_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        Draft(**{"job_id": ID, "kind": "work", field: value})
    assert refused.value.field == field
    assert refused.value.value is value
    assert isinstance(refused.value, InvalidName) == (field in {"kind", "queue"})
    assert isinstance(refused.value, InvalidPayload) == (field == "payload")


@pytest.mark.spec("INPUT-01")
def test_a_moment_and_a_delay_exclude_each_other() -> None:
    with pytest.raises(InvalidInput, match=r"at: .* cannot be combined with a delay"):
        Draft(ID, "work", delay=1, at=1)
    assert Draft(ID, "work", at=0).at == 0
    assert Draft(ID, "work", at=LATEST).at == LATEST


@pytest.mark.spec("INPUT-01")
def test_a_payload_has_a_size_limit() -> None:
    assert len(Draft(ID, "work", b" " * LARGEST_PAYLOAD).payload) == LARGEST_PAYLOAD
    with pytest.raises(PayloadTooLarge, match="1048577 bytes"):
        Draft(ID, "work", b" " * (LARGEST_PAYLOAD + 1))


@pytest.mark.spec("INPUT-01")
@given(
    st.integers(-1000, 1000),
    SPANS,
    st.integers(1, MOST_ATTEMPTS),
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}", fullmatch=True),
)
def test_everything_within_the_limits_is_accepted(priority: int, delay: int, attempts: int, name: str) -> None:
    draft = Draft(ID, name, queue=name, priority=priority, delay=delay, attempts=attempts)
    assert (draft.kind, draft.queue, draft.priority, draft.delay) == (name, name, priority, delay)


@pytest.mark.spec("INPUT-07")
def test_names_are_checked_also_when_the_memory_for_known_ones_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "_known_names", {"known"})
    monkeypatch.setattr(job_module, "_KNOWN_LIMIT", 1)
    check_name("lock", "unseen")
    assert job_module._known_names == {"known"}
    assert Draft(ID, "known", queue="unseen").queue == "unseen"
    with pytest.raises(InvalidName, match="lock"):
        check_name("lock", "not good")


@pytest.mark.spec("INPUT-07")
@given(st.text(max_size=140))
def test_a_name_is_known_only_after_it_was_found_good(name: str) -> None:
    first = _refusal(name)
    assert _refusal(name) == first
    good = name.isascii() and 0 < len(name) <= 128 and name[0] not in ".:-"
    if first is None:
        assert good
        assert all(letter.isalnum() or letter in "_.:-" for letter in name)


def _refusal(name: str) -> str | None:
    try:
        check_name("queue", name)
    except InvalidName as error:
        return str(error)
    return None


# --- options --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("INPUT-08")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", 1.5),
        ("timeout", LONGEST + 1),
        ("expires", -1),
        ("expires", "1"),
        ("keep", -1),
        ("keep", LONGEST + 1),
        ("isolation", "thread"),
        ("isolation", ""),
    ],
)
def test_impossible_options_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        Options(**{field: value})
    assert (refused.value.field, refused.value.value) == (field, value)


@pytest.mark.spec("INPUT-08")
@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"a": 1}, "text to text"),
        ({1: "a"}, "text to text"),
        ({"a": None}, "text to text"),
        ({"a\0": "b"}, "NUL"),
        ({"a": "\0"}, "NUL"),
        ({"a": "\ud800"}, "surrogates"),
        ({"\udfff": "a"}, "surrogates"),
        ({"a": "x" * LARGEST_METADATA}, "8192 bytes"),
        ({str(n): "é" * 100 for n in range(50)}, "8192 bytes"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_metadata_is_small_text(metadata: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as refused:
        check_metadata(metadata)
    assert refused.value.field == "metadata"
    with pytest.raises(InvalidInput, match=why):
        Options(metadata=metadata)


@pytest.mark.spec("INPUT-08")
def test_metadata_may_be_just_large_enough() -> None:
    check_metadata({"a": "x" * (LARGEST_METADATA - 1)})
    check_metadata({})


@pytest.mark.spec("INSERT-02")
@given(OPTIONS)
def test_options_survive_being_stored(options: Options) -> None:
    assert unpack(pack(options)) == options


@pytest.mark.spec("INSERT-02")
def test_plain_options_cost_nothing() -> None:
    assert pack(PLAIN) is None
    assert pack(Options()) is None
    assert unpack(None) is PLAIN
    assert pack(Options(keep=0)) == b'{"keep":0}'


@pytest.mark.spec("INSERT-02")
def test_options_of_a_newer_version_are_read() -> None:
    assert unpack(b'{"keep":5,"colour":"red"}') == Options(keep=5)
    assert unpack('{"timeout":1}') == Options(timeout=1)


# --- records --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("STATUS-02")
def test_every_status_is_either_active_or_finished() -> None:
    assert frozenset(Status) == ACTIVE | FINISHED
    assert not ACTIVE & FINISHED
    assert {status.value for status in ACTIVE} == {"pending", "running", "retrying"}


@pytest.mark.spec("STATUS-02")
def test_pending_is_shown_by_time() -> None:
    assert record(scheduled_at=5).view(5) == "ready"
    assert record(scheduled_at=6).view(5) == "scheduled"
    for status in frozenset(Status) - {Status.PENDING}:
        assert record(status=status, scheduled_at=6).view(5) == status.value


@pytest.mark.spec("STATUS-02", "INPUT-09")
@pytest.mark.parametrize("value", ["scheduled", "ready", "failed", "PENDING", ""])
def test_an_unknown_status_is_no_status(value: str) -> None:
    with pytest.raises(ValueError, match=value or "''"):
        Status(value)


@pytest.mark.spec("SETTLE-06")
@given(st.integers(0, 100))
def test_a_history_keeps_its_newest_entries(n: int) -> None:
    history: tuple[Failure, ...] = ()
    for attempt in range(n):
        history = appended(history, Failure(attempt, attempt, "boom"))
        assert history[-1].attempt == attempt
    assert [failure.attempt for failure in history] == list(range(n))[-LONGEST_HISTORY:]


@pytest.mark.spec("SETTLE-14")
@given(st.dictionaries(TEXTS, TEXTS), st.none() | st.dictionaries(TEXTS, TEXTS))
def test_the_newest_word_on_a_metadata_key_wins(before: dict[str, str], more: dict[str, str] | None) -> None:
    kept = dict(before)
    after = noted(before, more)
    assert before == kept
    assert after == {**before, **(more or {})}
    assert noted(after, more) == after


@pytest.mark.spec("INPUT-01")
def test_a_record_is_a_value() -> None:
    assert record() == record()
    assert record() != record(priority=1)
    with pytest.raises(AttributeError):
        record().priority = 1  # type: ignore[misc]
    changed = msgspec.structs.replace(Draft(ID, "work", unique=Unique("k")), delay=SECOND)
    assert (changed.delay, changed.unique) == (SECOND, Unique("k"))


@pytest.mark.spec("SETTLE-21")
def test_a_settlement_names_the_keys_of_its_follow_ups() -> None:
    plain, keyed = Draft(job_id=bytes(16), kind="a"), Draft(job_id=bytes(16), kind="a", unique=Unique("k"))
    wide = Draft(job_id=bytes(16), kind="a", unique=Unique("w", "global"))
    settlement = Settlement(bytes(16), "w", 1, Status.DONE, followups=(plain, keyed, wide))
    assert settlement.slots == {"a/k", "/w"}
    assert Settlement(bytes(16), "w", 1, Status.DONE).slots == frozenset()


@pytest.mark.spec("INSERT-14")
def test_a_long_list_is_split_by_number_and_by_size() -> None:
    def cut(sizes: list[int], most_bytes: int | None) -> list[tuple[int, int]]:
        drafts = [Draft(n.to_bytes(16), "work", b"x" * size) for n, size in enumerate(sizes)]
        return [(portion.start, portion.stop) for portion in portions(drafts, most_bytes)]

    assert cut([], 10) == []
    assert cut([2] * 5, None) == [(0, 5)]
    assert cut([2] * 5, 10) == [(0, 5)]
    assert cut([2] * 5, 4) == [(0, 2), (2, 4), (4, 5)]
    assert cut([9, 1, 9, 9], 4) == [(0, 1), (1, 2), (2, 3), (3, 4)], "one that is too large goes alone"
    assert cut([0] * (2 * LARGEST_BATCH + 1), 4) == [(0, 1_000), (1_000, 2_000), (2_000, 2_001)]


@pytest.mark.spec("LEASE-16")
@pytest.mark.parametrize("lease", [-1, LONGEST + 1, 1.5, float("nan"), True, "15"])
def test_an_impossible_lease_is_refused(lease: Any) -> None:
    with pytest.raises(InvalidInput, match="lease"):
        check_lease(lease)


@pytest.mark.spec("LEASE-16")
def test_a_lease_may_be_anything_from_nothing_to_ten_years() -> None:
    for lease in (0, 1, LONGEST):
        check_lease(lease)


@pytest.mark.spec("ID-05")
def test_a_caller_s_draft_has_no_id_that_stoker_derives() -> None:
    """Nor has any link behind it, unless it is derived from the id before it."""
    minted, other = ids.compose(5, 1), ids.compose(5, 2)
    foreseen = ids.occurrence("nightly", 5)
    link = Draft(ids.link(other, 1), "work")
    good = (
        Draft(minted, "work"),
        Draft(minted, "work").then(Draft(other, "work")),
        Draft(other, "work").then(Draft(minted, "work"), link),
        Draft(minted, "work").then(Draft(other, "work").then(Draft(ids.link(other, 0), "work"))),
    )
    for draft in good:
        check_ids(draft)
    bad = (
        Draft(foreseen, "work"),
        Draft(minted, "work").then(Draft(foreseen, "work")),
        Draft(other, "work").then(link),
        Draft(minted, "work").then(Draft(other, "work").then(Draft(foreseen, "work"))),
    )
    for draft in bad:
        with pytest.raises(InvalidInput, match="version 8"):
            check_ids(draft)


@pytest.mark.spec("MODEL-03")
@pytest.mark.parametrize("wrong", ["ab", 7, ["a"]])
def test_metadata_are_a_map(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="metadata: must map text to text"):
        Options(metadata=wrong)


def test_a_plain_settlement_is_a_success_that_stores_nothing_beside_its_result() -> None:
    done = Settlement(ID, "w", 1, Status.DONE, result=b"1", keep=SECOND)
    assert done.plain
    changes: list[dict[str, Any]] = [
        {"status": Status.RETRYING},
        {"error": "E"},
        {"cool": Cool(0)},
        {"metadata": {"k": "v"}},
        {"followups": (Draft(ID, "k"),)},
        {"steps": (Step("a"),)},
        {"refund": True},
        {"crash": True},
        {"throttled": True},
    ]
    assert not any(msgspec.structs.replace(done, **change).plain for change in changes)


@pytest.mark.spec("FIND-30")
@given(st.binary(min_size=16, max_size=16))
def test_options_hold_a_group_in_the_text_by_which_stores_find_it(group: bytes) -> None:
    packed = job_module.pack(Options(group=group))
    assert packed is not None
    assert f'"group":"{job_module.group_text(group)}"'.encode() in packed


@pytest.mark.spec("INPUT-01")
@pytest.mark.parametrize("priority", [-1000, 1000])
def test_the_ends_of_a_range_of_priorities_are_in_it(priority: int) -> None:
    assert Draft(b"1" * 16, "send", priority=priority).priority == priority

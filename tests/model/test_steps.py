"""Rows of steps: their names, what a run and a signal make of them, and when a suspended job runs again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model import ids
from stoker.model.errors import InvalidInput, InvalidName, InvalidPayload, PayloadTooLarge
from stoker.model.groups import called_group, closing_signals, new_group, pack_callbacks, unpack_callbacks
from stoker.model.steps import (
    LARGEST_BROUGHT,
    LARGEST_VALUE,
    LONGEST_KEY,
    LONGEST_NAME,
    LONGEST_ROW,
    MOST_BROUGHT,
    NEVER,
    NOTHING,
    RowNames,
    Signal,
    Step,
    StepState,
    Wakes,
    about,
    answered,
    asks,
    box_of,
    brought,
    called_job,
    check_box,
    check_fork,
    check_key,
    check_step,
    due,
    due_at_once,
    group_wait,
    is_open,
    kept_by_copy,
    lets_run,
    misfit,
    numbered,
    shown,
    span_of,
    stored,
    target,
    told,
    waits_for,
)

DONE, FAILED, WAITING, EARLY, CALLED = StepState
JOB, GROUP = b"j" * 16, b"g" * 16
NOW = 1_000_000


class Text(str):
    """Text of a framework's own class."""

    __slots__ = ()


def rows(*found: Step) -> dict[str, Step]:
    return {row.name: row for row in found}


# --- names ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("STEP-01")
def test_the_nth_use_of_a_name_has_its_number() -> None:
    names = RowNames()
    assert [names.step("a"), names.step("b"), names.step("a"), names.step("a")] == ["a", "b", "a#2", "a#3"]
    assert [names.call("kid"), names.call("kid"), names.call("kid", "x")] == ["call:kid", "call:kid#2", "call:kid:x"]
    assert [box_of(name) for name in ("a", "a#2", "a#10", "a#0", "a#2#3")] == ["a", "a", "a", "a#0", "a#2"]
    assert names.step("a", "k") == "a:k"


@pytest.mark.spec("STEP-02")
def test_a_key_names_one_step_of_a_run() -> None:
    names = RowNames()
    names.step("a", "k")
    assert names.step("b", "k") == "b:k"
    with pytest.raises(InvalidInput, match="used once in a run, and a was called"):
        names.step("a", "k")


@pytest.mark.spec("STEP-02")
@pytest.mark.parametrize("name", ["", "a b", "a#2", "a:b", "é", "x" * (LONGEST_NAME + 1), 7, None])
def test_an_impossible_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidName):
        check_step(name)


@pytest.mark.spec("STEP-02")
def test_names_and_keys_become_plain_text() -> None:
    for check in (check_step, check_box, check_key):
        assert type(check(Text("a"))) is str
    assert check_step("x" * LONGEST_NAME)
    assert check_box("approval#12") == "approval#12"
    assert check_key("é" * (LONGEST_KEY // 2))


@pytest.mark.spec("ANSWER-09")
@pytest.mark.parametrize("name", ["", "a#", "a#0", "a#x", "call:kid", "calls:00", "a b", None])
def test_an_impossible_signal_is_refused(name: Any) -> None:
    with pytest.raises(InvalidName):
        check_box(name)


@pytest.mark.spec("STEP-02")
@pytest.mark.parametrize("key", ["", "a\0b", "\ud800", "x" * (LONGEST_KEY + 1), 7])
def test_an_impossible_key_is_refused(key: Any) -> None:
    with pytest.raises(InvalidInput):
        check_key(key)


@pytest.mark.spec("STEP-03")
def test_an_impossible_row_is_refused() -> None:
    assert Step("x" * LONGEST_ROW, DONE, b"1").value == b"1"
    assert len(Step("a", DONE, b" " * LARGEST_VALUE).value or b"") == LARGEST_VALUE
    for name in ("", "x" * (LONGEST_ROW + 1), "a\0", None):
        with pytest.raises(InvalidName):
            Step(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidPayload):
        Step("a", DONE, "1")  # type: ignore[arg-type]
    with pytest.raises(PayloadTooLarge, match="step a"):
        Step("a", DONE, b" " * (LARGEST_VALUE + 1))
    with pytest.raises(PayloadTooLarge):
        Signal(JOB, "a", b" " * (LARGEST_VALUE + 1))


@pytest.mark.spec("STEP-01")
@given(st.from_regex(r"[A-Za-z0-9_.-]{1,100}", fullmatch=True), st.integers(2, 10**9))
def test_numbered_rows_of_a_name_lie_together(name: str, n: int) -> None:
    first, last = span_of(name)
    assert first.encode() < numbered(name, n).encode() < last.encode()
    assert not first <= name < last


# --- what a run makes of a row ----------------------------------------------------------------------------------


@pytest.mark.spec("STEP-04")
@pytest.mark.parametrize("state", [DONE, FAILED, WAITING, CALLED])
def test_a_new_row_is_stored_as_it_is(state: StepState) -> None:
    assert stored(None, Step("a", state, b"1", 5), 7, NOW) == Step("a", state, b"1", 5, 7, NOW)


@pytest.mark.spec("STEP-04")
@pytest.mark.parametrize("before", list(StepState))
@pytest.mark.parametrize("state", [DONE, CALLED])
def test_what_is_finished_or_called_overwrites(before: StepState, state: StepState) -> None:
    was = Step("a", before, b"0", 3, 2, 1)
    assert stored(was, Step("a", state, b"1"), 7, NOW) == Step("a", state, b"1", None, 7, NOW)


@pytest.mark.spec("ANSWER-05")
@pytest.mark.parametrize("before", [DONE, EARLY])
def test_a_failure_does_not_overwrite_an_answer(before: StepState) -> None:
    assert stored(Step("a", before, b"0"), Step("a", FAILED, b"1"), 7, NOW) is None


@pytest.mark.spec("STEP-04")
@pytest.mark.parametrize("before", [FAILED, WAITING, CALLED])
def test_a_failure_ends_a_wait(before: StepState) -> None:
    after = stored(Step("a", before, b"0", 3, 2, 1), Step("a", FAILED, b"1"), 7, NOW)
    assert after == Step("a", FAILED, b"1", None, 7, NOW)


@pytest.mark.spec("STEP-46")
def test_rows_that_may_wait_for_a_signal() -> None:
    """Sleeps, steps that are tried again, called jobs and what has ended do not; a value that is sealed may."""
    found = {
        name: asks(Step(name, state, value))
        for name, state, value in (
            ("ask", StepState.WAITING, told(ask="May we?")),
            ("any", StepState.WAITING, told()),
            ("sealed", StepState.WAITING, b'"sealed"'),
            ("sleep", StepState.WAITING, None),
            ("try", StepState.WAITING, told(kind="OSError", error="no", tries=2)),
            ("calls:1", StepState.WAITING, told()),
            ("done", StepState.DONE, told(ask="May we?")),
        )
    }
    assert [name for name, one in found.items() if one] == ["ask", "any", "sealed"]


@pytest.mark.spec("STEP-05")
def test_a_wait_that_is_opened_again_keeps_since_when_it_waits() -> None:
    after = stored(Step("a", WAITING, b"0", 3, 2, 1), Step("a", WAITING, b"1", 9), 7, NOW)
    assert after == Step("a", WAITING, b"1", 9, 7, 1)
    assert stored(Step("a", CALLED, b"0"), Step("a", WAITING), 7, NOW) == Step("a", WAITING, None, None, 7, NOW)


@pytest.mark.spec("ANSWER-02")
@pytest.mark.parametrize(("before", "after"), [(EARLY, DONE), (DONE, DONE), (FAILED, FAILED)])
def test_a_wait_finds_the_answer_that_is_there(before: StepState, after: StepState) -> None:
    row = stored(Step("a", before, b"0", None, 2, 1), Step("a", WAITING, b"ask", 9), 7, NOW)
    assert row is not None
    assert (row.state, row.value, row.token, row.at) == (after, b"0", 7, 1)
    assert not is_open(row)


# --- signals ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("ANSWER-01")
def test_a_signal_answers_a_wait_or_is_kept() -> None:
    assert answered(None, "a", b"1", NOW) == Step("a", EARLY, b"1", None, 0, NOW)
    assert answered(Step("a", WAITING, b"ask", 9, 7, 1), "a", b"1", NOW) == Step("a", DONE, b"1", 9, 7, NOW)
    assert answered(Step("a", DONE, b"0", 9, 7, 1), "a", b"1", NOW) == Step("a", DONE, b"1", 9, 7, NOW)
    assert answered(Step("a", EARLY, b"0"), "a", b"1", NOW) == Step("a", EARLY, b"1", None, 0, NOW)


@pytest.mark.spec("ANSWER-03")
@pytest.mark.parametrize(
    ("found", "name", "meant"),
    [
        ((), "a", "a"),
        ((Step("a", WAITING),), "a", "a"),
        ((Step("a"), Step("a#2", WAITING)), "a", "a#2"),
        ((Step("a#10", WAITING), Step("a#9", WAITING), Step("a")), "a", "a#9"),
        ((Step("a"),), "a", None),
        ((Step("a", EARLY),), "a", None),
        ((Step("a", FAILED),), "a", None),
        ((Step("a"), Step("a#2")), "a", None),
        ((Step("a#2"),), "a", "a"),
        ((Step("ab", WAITING), Step("a#x", WAITING), Step("a#²", WAITING)), "a", "a"),
        ((Step("a", WAITING), Step("a#2", WAITING)), "a#2", "a#2"),
        ((), "a#2", "a#2"),
        ((Step("a#2"),), "a#2", None),
        ((Step("calls:00", WAITING),), "calls:00", "calls:00"),
        ((Step("call:kid", CALLED),), "call:kid", None),
    ],
)
def test_a_signal_goes_to_the_open_wait_of_its_name(found: tuple[Step, ...], name: str, meant: str | None) -> None:
    assert target(rows(*found), Signal(JOB, name)) == meant


@pytest.mark.spec("ANSWER-04")
@pytest.mark.parametrize(
    ("found", "meant"),
    [
        ((), "a"),
        ((Step("a", EARLY),), "a#2"),
        ((Step("a"), Step("a#2", WAITING), Step("a#3", EARLY)), "a#2"),
        ((Step("a"), Step("a#2"), Step("a#3")), "a#4"),
        ((Step("a#2"),), "a"),
    ],
)
def test_an_appended_signal_takes_the_next_free_number(found: tuple[Step, ...], meant: str) -> None:
    assert target(rows(*found), Signal(JOB, "a", append=True)) == meant


@pytest.mark.spec("ANSWER-06")
@pytest.mark.parametrize(
    ("found", "name", "meant"),
    [
        ((Step("a", at=1), Step("a#2", at=3), Step("a#3", FAILED, at=2)), "a", "a#2"),
        ((Step("a", at=1), Step("a#2", WAITING)), "a", "a#2"),
        ((), "a", "a"),
        ((Step("a#2"),), "a#2", "a#2"),
    ],
)
def test_an_answer_can_be_given_again(found: tuple[Step, ...], name: str, meant: str) -> None:
    assert target(rows(*found), Signal(JOB, name, again=True)) == meant


# --- when a job runs again --------------------------------------------------------------------------------------


@pytest.mark.spec("STEP-10")
def test_a_suspended_job_is_due_at_its_first_deadline() -> None:
    assert due([]) == NEVER
    assert due([Step("a", WAITING), Step("b", DONE, until=1)]) == NEVER
    assert due([Step("a", WAITING, until=9), Step("b", WAITING, until=5), Step("c", WAITING)]) == 5


@pytest.mark.spec("STEP-20")
@pytest.mark.parametrize(
    ("states", "any_", "all_"),
    [
        ([WAITING], False, False),
        ([DONE], True, True),
        ([FAILED], True, True),
        ([WAITING, DONE], True, False),
        ([DONE, FAILED], True, True),
        ([WAITING, WAITING], False, False),
    ],
)
def test_a_suspension_finds_what_it_waits_for(states: list[StepState], any_: bool, all_: bool) -> None:
    opened = [Step(str(n), state) for n, state in enumerate(states)]
    assert due_at_once(Wakes.ANY, opened) is any_
    assert due_at_once(Wakes.ALL, opened) is all_


@pytest.mark.spec("STEP-20", "STEP-22")
def test_only_rows_of_the_suspension_count() -> None:
    mine, older, given_up = (Step("a", WAITING, token=token) for token in (7, 5, 0))
    for wakes in Wakes:
        assert lets_run(wakes, 7, mine, [])
        assert lets_run(wakes, 7, mine, [older, given_up, Step("b", DONE, token=7)])
        assert not lets_run(wakes, 7, older, [])
        assert not lets_run(wakes, 7, given_up, [])
    assert lets_run(Wakes.ANY, 7, mine, [mine])
    assert not lets_run(Wakes.ALL, 7, mine, [mine])


@pytest.mark.spec("ANSWER-14")
def test_only_an_open_wait_with_a_schema_judges_its_answer() -> None:
    asks = b'{"ask":"How many?","schema":{"type":"integer"}}'
    assert misfit(Step("go", WAITING, asks), b"1") is None
    assert misfit(Step("go", WAITING, asks), b'"1"') == "it must be of type integer"
    for lenient in (
        None,
        Step("go", DONE, asks),
        Step("go", WAITING),
        Step("go", WAITING, b"1"),
        Step("go", WAITING, b"{}"),
    ):
        assert misfit(lenient, b'"1"') is None


# --- groups of called jobs --------------------------------------------------------------------------------------


@pytest.mark.spec("CALL-01")
def test_a_group_of_called_jobs_answers_the_wait_of_its_caller() -> None:
    group = called_group(GROUP, JOB)
    assert (group.sealed, group.wakes) == (True, (JOB, group_wait(GROUP)))
    assert closing_signals([group, new_group(b"h" * 16)]) == [Signal(JOB, f"calls:{GROUP.hex()}", b"null")]
    assert unpack_callbacks(pack_callbacks(group)).wakes == group.wakes
    assert unpack_callbacks(b"{}").wakes is None


# --- what people see --------------------------------------------------------------------------------------------


@pytest.mark.spec("DURABLE-23")
def test_what_a_row_waits_for() -> None:
    asked = Step("approval", WAITING, b'{"ask":"buy?","schema":{"type":"boolean"}}')
    tried = Step("charge", WAITING, told(kind="E", error="E: no", tries=2), NOW)
    called = Step("call:label", CALLED, told(job=ids.text(JOB), group=ids.text(GROUP)))
    failed = Step("call:x", FAILED, b'{"kind":"x","error":"no","job":"6a6a6a6a-6a6a-6a6a-6a6a-6a6a6a6a6a6a"}')
    broken = Step("odd", FAILED, b"[")
    found = [asked, Step("sleep", WAITING, None, NOW), tried, called, Step(group_wait(GROUP), WAITING), failed, broken]
    assert [waits_for(row) for row in found] == ["signal", "time", "try", "job", None, None, None]
    assert (about(asked).ask, about(asked).schema) == ("buy?", {"type": "boolean"})
    assert tried.value == b'{"kind":"E","error":"E: no","tries":2}'
    assert (about(tried).error, about(tried).tries, about(broken)) == ("E: no", 2, NOTHING)
    assert about(Step("a", DONE, b'{"ask":"no question"}')) is NOTHING
    assert [called_job(row) for row in (called, failed, asked)] == [JOB, JOB, None]
    late = Step("a", DONE, b"1", at=1)
    assert [row.name for row in shown([Step("b", WAITING, at=1), late, Step("0", at=0)])] == ["0", "a", "b"]
    assert group_wait(GROUP) not in {row.name for row in shown(found)}


@pytest.mark.spec("STEP-35")
def test_a_fork_keeps_what_was_finished_up_to_a_step() -> None:
    found = rows(Step("a", at=1), Step("b", FAILED, at=2), Step("w", WAITING, at=2), Step("c", at=3))
    assert kept_by_copy(found, None) == found
    assert set(kept_by_copy(found, "b")) == {"a", "b"}
    assert kept_by_copy(found, "x") == {}
    check_fork("b", found.values(), "7")
    with pytest.raises(InvalidInput, match="no finished step of job 7: its finished steps are a, b, c"):
        check_fork("w", found.values(), "7")
    with pytest.raises(InvalidInput, match="it has none"):
        check_fork("w", (), "7")


@pytest.mark.spec("STEP-47")
def test_a_claim_brings_few_and_small_rows_and_no_pages() -> None:
    page, many = Step("!0", value=b"[]"), [Step(f"s{n}", value=b"1") for n in range(MOST_BROUGHT)]
    half = LARGEST_BROUGHT // 2
    assert brought([page, *many]) == tuple(many)
    assert brought([*many, Step("one more")]) is None
    assert brought([Step("a", value=b"1" * half), Step("b", value=b"1" * half)]) is not None
    assert brought([Step("a", value=b"1" * half), Step("b", value=b"1" * half), Step("c", value=b"1")]) is None
    assert brought([page]) is brought([]) is None


@pytest.mark.spec("STEP-02")
def test_uses_of_a_name_are_numbered_one_by_one() -> None:
    names = RowNames()
    assert [names.step("a") for _ in range(3)] == ["a", "a#2", "a#3"]
    assert names.step("a", "k") == "a:k"
    with pytest.raises(InvalidInput, match="must be used once in a run"):
        names.step("a", "k")


@pytest.mark.spec("ANSWER-03")
@pytest.mark.parametrize("name", ["go#2", "go:k"])
def test_a_name_with_a_number_or_a_key_means_that_very_row(name: str) -> None:
    """Also while another wait of the name is open."""
    waiting = rows(Step("go", StepState.WAITING))
    assert target(waiting, Signal(b"1" * 16, name)) == name

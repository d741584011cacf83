from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model import errors
from stoker.model.errors import (
    LONGEST_PART,
    Duplicate,
    DuplicateSchedule,
    DuplicateTask,
    EngineError,
    InvalidArgument,
    InvalidInput,
    InvalidPayload,
    InvalidTransition,
    JobCanceled,
    JobFailed,
    KeyHeld,
    LockLost,
    LostClaim,
    NotFound,
    PayloadMismatch,
    PayloadTooLarge,
    ResultUnavailable,
    StepFailed,
    StokerError,
    UnknownTask,
    WrongState,
    WrongStatus,
    cut,
    sentence,
    shown,
)

ALL = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.spec("ERROR-01")
@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_every_error_is_in_the_one_tree(error: type[Exception]) -> None:
    assert issubclass(error, StokerError)
    assert not issubclass(error, BaseExceptionGroup)


@pytest.mark.spec("ERROR-01")
def test_errors_are_also_what_python_calls_them() -> None:
    assert issubclass(InvalidInput, ValueError)
    assert issubclass(errors.NotFound, LookupError)
    assert issubclass(UnknownTask, LookupError)
    assert issubclass(PayloadTooLarge, errors.InvalidPayload)


@pytest.mark.spec("ERROR-01")
def test_what_the_store_says_has_a_branch_of_its_own() -> None:
    named = {error.__name__ for error in ALL if issubclass(error, EngineError)}
    assert named == {
        "EngineError",
        "EngineUnavailable",
        "EngineBusy",
        "EngineSlow",
        "EngineFull",
        "EngineReadOnly",
        "EngineClosed",
        "EngineRefused",
        "CorruptRecord",
        "SchemaMismatch",
    }


@pytest.mark.spec("ERROR-02")
def test_refused_input_names_field_value_and_reason() -> None:
    error = InvalidInput("queue", "a b", "must not contain spaces")
    assert (error.field, error.value, error.why) == ("queue", "a b", "must not contain spaces")
    assert str(error) == "queue: must not contain spaces; got 'a b'. Nothing was stored."
    read = InvalidArgument("cursor", "zzz", "must be the one of the page before").named("after")
    assert str(read) == "after: must be the one of the page before; got 'zzz'."


@pytest.mark.spec("ERROR-02")
@pytest.mark.parametrize(
    ("stored", "shape"),
    [(b' {"card": 4242}', "an object"), (b"[4242]", "a list"), (b'"4242"', "text"), (b"4242", "a number")]
    + [(b"true", "a boolean"), (b"null", "null"), (b"", "nothing")],
)
def test_a_payload_that_does_not_fit_is_named_by_its_shape(stored: bytes, shape: str) -> None:
    error = PayloadMismatch("call", stored, "must be two numbers")
    assert str(error) == f"call: must be two numbers; got {shape}. What is stored is unchanged."


@pytest.mark.spec("ERROR-02")
def test_a_value_that_json_cannot_carry_is_named_by_its_type() -> None:
    assert str(InvalidPayload("result", {1}, "must be JSON")) == "result: must be JSON; got set. Nothing was stored."
    assert str(PayloadMismatch("result", {1}, "is no text")).endswith("; got set. What is stored is unchanged.")


@pytest.mark.spec("ERROR-02")
@pytest.mark.parametrize(("job", "whose"), [(None, "a job"), ("0190", "job 0190")])
def test_a_refused_transition_names_both_ends_and_the_job(job: str | None, whose: str) -> None:
    error = InvalidTransition("done", "pending", job)
    assert (error.before, error.after, error.whose) == ("done", "pending", job)
    assert str(error) == f"{whose} cannot go from done to pending. The record is unchanged."


@pytest.mark.spec("ERROR-02")
def test_an_unknown_task_lists_the_known_ones() -> None:
    assert "known: a, b" in str(UnknownTask("c", ("b", "a")))
    assert "known: none" in str(UnknownTask("c"))
    assert UnknownTask("c").kind == "c"
    assert "(known: charge). Did you mean charge? Nothing" in str(UnknownTask("chrage", ("charge",)))
    assert "(known: charge). Nothing" in str(UnknownTask("mail", ("charge",)))


@pytest.mark.spec("ERROR-02")
def test_a_task_registered_twice_names_both_places() -> None:
    error = DuplicateTask("send", "app.send", "lib.send")
    assert error.kind == "send"
    for word in ("send", "app.send", "lib.send"):
        assert word in str(error)


@pytest.mark.spec("ERROR-02")
def test_a_duplicate_carries_key_and_holder() -> None:
    error = Duplicate("img:7", b"\x01" * 16)
    assert (error.key, error.holder, error.handle) == ("img:7", b"\x01" * 16, None)
    assert error.job_id == "01010101-0101-0101-0101-010101010101"
    assert "'img:7'" in str(error)
    assert error.job_id in str(error)


@pytest.mark.spec("ERROR-02")
def test_the_end_of_a_job_carries_which_job_and_why() -> None:
    failed = JobFailed("id", "send", "dead", 5, "boom")
    assert (failed.job_id, failed.kind, failed.status, failed.attempt, failed.error) == (
        "id",
        "send",
        "dead",
        5,
        "boom",
    )
    assert str(failed) == "job id (send) is dead: boom"
    assert str(JobFailed("id", "send", "dead", 5, None)) == "job id (send) is dead: no error recorded"
    canceled = JobCanceled("id", "send", 0, "not wanted")
    assert (canceled.job_id, canceled.kind, canceled.attempt, canceled.error) == ("id", "send", 0, "not wanted")
    assert str(canceled) == "job id (send) was canceled: not wanted"
    assert str(JobCanceled("id", "send", 0, None)) == "job id (send) was canceled: no reason given"
    assert NotFound.job("id").job_id == "id"
    assert str(NotFound.job("id")).startswith("job id is not in the store")
    assert NotFound("stream 'x' is not registered").job_id is None


@pytest.mark.spec("ERROR-04")
@pytest.mark.parametrize(
    "error",
    [
        StokerError("plain"),
        InvalidInput("kind", 7, "must be text"),
        InvalidTransition("done", "running", "job"),
        UnknownTask("send", ("mail",)),
        DuplicateTask("send", "app.send", "lib.send"),
        Duplicate("img:7", b"\x01" * 16),
        JobFailed("id", "send", "dead", 5, "boom"),
        JobCanceled("id", "send", 0, None),
        ResultUnavailable("id", "send", 1, "is no JSON"),
        NotFound.job("id"),
        WrongStatus("id", "done", "requeue"),
        KeyHeld("id", "requeue", "img:7"),
        DuplicateSchedule("eu", "a.py:1", "b.py:2"),
        StepFailed("charge", "ValueError", "ValueError: declined"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_the_way_between_processes(error: StokerError) -> None:
    error.add_note("noted")
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(copied) is type(error)
        assert (str(copied), vars(copied)) == (str(error), vars(error))


@pytest.mark.spec("ERROR-04")
def test_a_handle_stays_where_it_is() -> None:
    error = Duplicate("img:7", b"\x01" * 16)
    error.handle = lambda: None
    copied = pickle.loads(pickle.dumps(error))
    assert copied.handle is None
    assert copied.job_id == error.job_id


@pytest.mark.spec("ERROR-03")
@given(st.text() | st.binary() | st.integers() | st.floats() | st.none(), st.integers(10, 100))
def test_a_culprit_is_shown_on_one_short_line(value: object, limit: int) -> None:
    text = shown(value, limit)
    assert len(text) <= limit
    assert text.rstrip("…").isascii()
    assert text.isprintable()


@pytest.mark.spec("ERROR-03")
def test_a_culprit_that_cannot_be_shown_does_not_hide_the_error() -> None:
    assert shown(Broken()) == "<Broken that cannot be shown>"
    assert "<Broken that cannot be shown>" in str(InvalidInput("kind", Broken(), "must be text"))


@pytest.mark.spec("ERROR-03")
def test_a_long_culprit_is_cut() -> None:
    assert shown("x" * 1_000) == "'" + "x" * 78 + "…"
    assert shown("short") == "'short'"
    assert [shown("x" * n, 10) for n in (8, 9)] == ["'xxxxxxxx'", "'xxxxxxxx…"]
    assert [cut("x" * n)[-1] for n in (LONGEST_PART, LONGEST_PART + 1)] == ["x", "…"]


@pytest.mark.spec("ERROR-03")
def test_an_error_names_its_thing_and_what_became_of_it() -> None:
    wrong = WrongState("operation 7", "done", "stop")
    assert (wrong.what, wrong.state, wrong.action) == ("operation 7", "done", "stop")
    assert str(wrong) == "operation 7 is done, which 'stop' does not apply to. Nothing was changed."
    assert str(LockLost("nightly")).startswith("lock 'nightly' was no longer held")
    assert str(LostClaim("job 7")).startswith("job 7 is no longer this worker's")
    failed = StepFailed("charge", "ValueError", "ValueError: no\nTraceback …")
    assert (failed.step, failed.kind, str(failed)) == ("charge", "ValueError", "step charge failed: ValueError: no")
    assert str(StepFailed("charge", "ValueError", "")) == "step charge failed: ValueError"


@pytest.mark.spec("FAILLOG-10")
@pytest.mark.parametrize(
    ("text", "told"), [("it is away", "it is away."), ("it is away.", "it is away."), ("which one?", "which one?")]
)
def test_a_line_of_the_log_can_go_on_after_an_error(text: str, told: str) -> None:
    assert sentence(EngineError(text)) == told


@pytest.mark.spec("PASS-11")
def test_a_job_that_is_not_stored_yet_names_the_one_before_it() -> None:
    called = NotFound.behind_group("b", "g", "of 1 members 0 done")
    assert (called.job_id, "is waiting behind group g (of 1 members 0 done)" in str(called)) == ("b", True)
    never = NotFound.not_called("b", "g", "then", "failed")
    assert (never.job_id, "it is then of group g, or behind that, and the group is failed" in str(never)) == ("b", True)
    error = NotFound.behind("b", "a", "send", "pending")
    assert (str(error), error.job_id) == ("job b is waiting behind job a (send, pending): its success stores it", "b")

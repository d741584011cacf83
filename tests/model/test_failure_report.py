"""What is reported of a run that failed."""

from __future__ import annotations

import pytest

from stoker.model.failure_report import FailureReport, error_type, failure_report, in_words
from stoker.model.job import Options
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Canceled, Done, Expired, Failed, HandedBack, Rejected, Snoozed, TimedOut
from stoker.model.retry import Fixed
from stoker.model.time import MINUTE, SECOND
from tests.model.test_lifecycle import claimed


@pytest.mark.spec("FAILLOG-01")
def test_a_run_that_will_be_repeated_says_when() -> None:
    claim = claimed(attempt=3, base=1, budget=4, options=Options(backoff=Fixed(2.5)))
    for outcome, error in (Failed("boom", True), "boom"), (TimedOut(SECOND), "timeout: ran longer than 1 s"):
        report = failure_report(claim, conclude(claim, outcome))
        assert report == FailureReport(False, "failed, attempt 3 of 5", error, "It runs again in 2.5 s.")
    assert [in_words(wait) for wait in (0, 1_000)] == ["at once", "in 0.001 s"]
    assert in_words(1_234_567) == "in 1.235 s"


@pytest.mark.spec("FAILLOG-01")
def test_a_dead_job_says_why_it_is_not_repeated() -> None:
    last = claimed(attempt=4, base=0, budget=4)
    report = failure_report(last, conclude(last, Failed("boom", True)))
    assert report == FailureReport(True, "failed, attempt 4 of 4", "boom", "It is dead: no attempt is left.")
    first = claimed(attempt=1, base=0, budget=4)
    report = failure_report(first, conclude(first, Rejected("never")))
    assert report == FailureReport(True, "failed, attempt 1 of 4", "never", "It is dead: it is not tried again.")


@pytest.mark.spec("FAILLOG-01")
def test_an_expired_job_is_reported_and_others_that_end_without_failing_are_not() -> None:
    late = claimed(options=Options(expires=MINUTE))
    report = failure_report(late, conclude(late, Expired()))
    assert report == FailureReport(False, "was not started", "expired: not started within 60 s", "It is canceled.")
    claim = claimed()
    for outcome in (Done(), Canceled(), Snoozed(SECOND), HandedBack()):
        assert failure_report(claim, conclude(claim, outcome)) is None


@pytest.mark.spec("WORKER-02")
def test_a_result_that_cannot_be_stored_is_reported_though_the_job_is_done() -> None:
    report = failure_report(claimed(), conclude(claimed(), Done(None, "is no JSON")))
    event = "is done, but its result cannot be stored"
    assert report == FailureReport(False, event, "is no JSON", "result() raises ResultUnavailable.")
    assert failure_report(claimed(), conclude(claimed(), Done(b"1"), metadata={"a": "b"})) is None


@pytest.mark.spec("LOG-04")
@pytest.mark.parametrize(
    "error, found",
    [
        ("ValueError: no luck\nTraceback", "ValueError"),
        ("shop.errors.OutOfStock", "shop.errors.OutOfStock"),
        ("KeyError\nTraceback", "KeyError"),
        ("timeout: ran longer than 1 s", None),
        ("Bad order: 7", None),
        ("boom", None),
    ],
)
def test_the_class_of_an_error_is_read_from_its_text(error: str, found: str | None) -> None:
    assert error_type(error) == found

"""A refusal names the field that has to be mended, in the words of the caller."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.budgets import Rates, Spend, budgeted
from stoker.model.control import Queue, Tuning, tuned
from stoker.model.errors import InvalidInput
from stoker.model.groups import new_group
from stoker.model.job import Draft, Options, chain, check_lease
from stoker.model.limit import Slot
from stoker.model.outbox.batch_size import Pace
from stoker.model.outbox.consumers import Release
from stoker.model.outbox.cursor import Consumer, LeaseRequest, Terms
from stoker.model.outbox.letters import ClaimLetters
from stoker.model.outbox.stream import Entry, Stream, check_received, entry
from stoker.model.query import Move, Prioritize
from stoker.model.retry import Exponential, Fixed, Linear
from stoker.model.schedule import Schedule
from stoker.model.throttle import Rate
from stoker.model.time import LONGEST, span
from stoker.model.tokens import AccessToken, Session, digest
from stoker.model.unique import Unique

HASH, BAD, NUL = digest("x"), "two words", "a\0b"


def schedule(**given: Any) -> Schedule:
    fields: dict[str, Any] = {
        "name": "nightly",
        "expression": "0 3 * * *",
        "template": Draft(bytes(16), "report"),
    } | given
    return Schedule(**fields)


def message(**given: Any) -> Entry:
    fields: dict[str, Any] = {"id": bytes(16), "key": "k", "partition": 0, "payload": b"{}", "type": "Order"} | given
    return Entry(**fields)


@pytest.mark.spec("INPUT-01", "INPUT-07", "INPUT-08")
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: AccessToken(name=BAD, sha256=HASH), "token"),
        (lambda: AccessToken(name="ci", sha256=HASH, queues=(BAD,)), "queue"),
        (lambda: AccessToken(name="ci", sha256=HASH, role="root"), "role"),  # type: ignore[arg-type]
        (lambda: AccessToken(name="ci", sha256="x"), "sha256"),
        (lambda: Session(sha256=HASH, token=BAD, created=0, expires=1), "token"),
        (lambda: Session(sha256="x", token="ci", created=0, expires=1), "sha256"),
        (lambda: Draft(bytes(16), BAD), "kind"),
        (lambda: Draft(bytes(16), "send", queue=BAD), "queue"),
        (lambda: Draft(bytes(16), "send", tenant=""), "tenant"),
        (lambda: Draft(bytes(16), "send", delay=-1), "delay"),
        (lambda: Draft(bytes(16), "send", attempts=0), "attempts"),
        (lambda: Draft(bytes(16), "send", priority=1_001), "priority"),
        (lambda: Draft(bytes(16), "send", at=-1), "at"),
        (lambda: Draft(bytes(15), "send"), "job_id"),
        (lambda: Options(timeout=-1), "timeout"),
        (lambda: Options(timeout=0), "timeout"),
        (lambda: Options(expires=-1), "expires"),
        (lambda: Options(keep=-1), "keep"),
        (lambda: Options(metadata={"a": NUL}), "metadata"),
        (lambda: Options(isolation="thread"), "isolation"),  # type: ignore[arg-type]
        (lambda: Options(group=b""), "group"),
        (lambda: check_lease(-1), "lease"),
        (lambda: check_lease(True), "lease"),
        (lambda: Draft(bytes(16), "send").then(), "then"),
        (chain, "chain"),
        (lambda: new_group(bytes(16), then=[]), "then"),  # type: ignore[arg-type]
        (lambda: new_group(bytes(16), on_failure=[]), "on_failure"),  # type: ignore[arg-type]
        (lambda: new_group(bytes(16), on_finish=[]), "on_finish"),  # type: ignore[arg-type]
        (lambda: span(-1), "duration"),
        (lambda: span(-1, "wait"), "wait"),
        (lambda: Unique(""), "unique key"),
        (lambda: Slot("api", "", 1), "limit key"),
        (lambda: Slot(BAD, n=1), "limit name"),
        (lambda: Slot("api", n=0), "Limit.n"),
        (lambda: Slot("api", n=1, hold="always"), "Limit.hold"),  # type: ignore[arg-type]
        (lambda: Slot("api", rate=5), "Limit.rate"),  # type: ignore[arg-type]
        (lambda: Rates({BAD: Rate(1, per=1)}), "measure"),
        (lambda: Rates({"": 5}), "rate"),  # type: ignore[dict-item]
        (lambda: Rates({"tokens": 5}), "tokens"),  # type: ignore[dict-item]
        (lambda: Rates({}), "budget"),
        (lambda: Rates({"": Rate(1, per=1)}, keyed=2), "keyed"),  # type: ignore[arg-type]
        (lambda: Spend({"": 1}, key=""), "budget key"),
        (lambda: Spend({"": 0}), "spend(n)"),
        (lambda: Spend({"tokens": 0}), "spend(tokens)"),
        (lambda: Spend({}), "spend"),
        (lambda: budgeted(None, BAD, Rate(1, per=1), 0), "budget"),
        (lambda: schedule(name=BAD), "schedule name"),
        (lambda: schedule(grace=-1), "grace"),
        (lambda: schedule(jitter=-1), "jitter"),
        (lambda: Move(BAD), "queue"),
        (lambda: Prioritize(1_001), "priority"),
        (lambda: Fixed(-1), "Fixed.interval"),
        (lambda: Linear(-1, 1), "Linear.initial"),
        (lambda: Linear(1, -1), "Linear.increment"),
        (lambda: Linear(1, 1, -1), "Linear.max"),
        (lambda: Exponential(-1), "Exponential.base"),
        (lambda: Exponential(1, max=-1), "Exponential.max"),
        (lambda: Exponential(1, limit=-1), "Exponential.limit"),
        (lambda: Stream(BAD), "stream"),
        (lambda: Stream("orders", partitions=3), "partitions"),
        (lambda: Stream("orders", keep=-1), "keep"),
        (lambda: message(key=""), "key"),
        (lambda: message(payload="{}"), "payload"),
        (lambda: message(type=""), "payload type"),
        (lambda: message(headers={"a": NUL}), "headers"),
        (lambda: entry(Stream("orders"), "", b"{}", "Order", id=bytes(16)), "key"),
        (lambda: entry(Stream("orders"), "k", b"{}", "Order", id=bytes(16), partition=1), "partition"),
        (lambda: check_received("", []), "source"),
        (lambda: check_received("shop", [""]), "id"),
        (lambda: Release(""), "key"),
        (lambda: Consumer(BAD), "consumer"),
        (lambda: Consumer("mail", -1), "start"),
        (lambda: Terms(0, 0), "lease"),
        (lambda: Terms(LONGEST + 1), "lease"),
        (lambda: Terms(5, 5), "headroom"),
        (lambda: LeaseRequest("orders", "mail", "w", 0), "limit"),
        (lambda: ClaimLetters("ann", -1), "span"),
        (lambda: ClaimLetters("ann", 0), "span"),
        (lambda: Pace(batch=0), "batch"),
        (lambda: Pace(threshold=0), "threshold"),
        (lambda: Pace(idle=0), "idle"),
        (lambda: Pace(breath=-1), "breath"),
        (lambda: Pace(retry_base=0), "retry_base"),
        (lambda: Pace(retry_base=0, retry_max=0), "retry_base"),
        (lambda: Pace(retry_base=5, retry_max=4), "retry_max"),
        (lambda: tuned(Queue(name=BAD), Tuning(), 0), "queue"),
        (lambda: Tuning(workers=1.5), "workers"),  # type: ignore[arg-type]
        (lambda: Tuning(rate=5), "rate"),  # type: ignore[arg-type]
        (lambda: Tuning(fair=2), "fair"),  # type: ignore[arg-type]
        (lambda: Tuning(reason="why"), "reason"),
        (lambda: Tuning(pause_for=1), "pause_for"),
        (lambda: Tuning(paused=True, reason=""), "reason"),
        (lambda: Tuning(paused=True, by=NUL), "by"),
        (lambda: Tuning(paused=True, pause_for=0), "pause"),
        (lambda: Tuning(clear=frozenset({"name"})), "clear"),
        (lambda: Tuning(workers=1, clear=frozenset({"workers"})), "clear"),
    ],
)
def test_a_refusal_names_its_field(make: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        make()
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")


@pytest.mark.spec("INPUT-02", "OUTBOX-11")
def test_the_shortest_and_the_longest_spans_are_taken() -> None:
    """A microsecond is a span, and so are ten years."""
    assert (Pace(idle=1).idle, Pace(retry_base=1, retry_max=1).retry_base, Pace(breath=1, idle=1).breath) == (1, 1, 1)
    assert (Terms(1, 0).lease, Terms(LONGEST, LONGEST - 1).lease) == (1, LONGEST)
    assert Pace(idle=LONGEST, breath=LONGEST, retry_base=LONGEST, retry_max=LONGEST).retry_max == LONGEST
    assert (Options(timeout=1).timeout, Options(keep=0).keep, Options(keep=LONGEST).keep) == (1, 0, LONGEST)
    assert ClaimLetters("ann", 1).span == Tuning(paused=True, pause_for=1).pause_for == 1
    for longer in ({"idle": LONGEST + 1}, {"retry_max": LONGEST + 1}):
        with pytest.raises(InvalidInput, match="ten years"):
            Pace(**longer)

"""The audit log as values: who, what was done, and what an entry must not tell."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.audit import (
    AuditEntry,
    AuditQuery,
    By,
    Deed,
    latest,
    of_alter,
    of_letters,
    of_setting,
    of_steer,
    pack,
    unpack,
)
from stoker.model.control import Queue
from stoker.model.errors import InvalidInput
from stoker.model.job import Draft, Status
from stoker.model.outbox.letters import Clean, LetterFilter, Letters
from stoker.model.outbox.letters import Count as CountLetters
from stoker.model.outbox.steering import Resume
from stoker.model.query import Cancel, Change, Discard, Edit, Former, Move, Prioritize, RunNow, Selection, Tally
from stoker.model.schedule import Schedule

A, B = b"a" * 16, b"b" * 16


@pytest.mark.spec("AUDIT-05")
@pytest.mark.parametrize(
    "wrong", [{"who": ""}, {"who": "x" * 1_001}, {"reason": "\0"}, {"request": 5}, {"way": "letter"}]
)
def test_who_and_why_are_bounded_texts(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        By(**{"who": "maria", **wrong})


@pytest.mark.spec("AUDIT-01")
@pytest.mark.parametrize(
    ("change", "action", "after"),
    [
        (Cancel("why"), "jobs.cancel", {"reason": "why", "force": False}),
        (Move("bulk"), "jobs.move", {"queue": "bulk"}),
        (Prioritize(3), "jobs.prioritize", {"priority": 3}),
        (Edit(payload=b"secret", attempts=4), "jobs.edit", {"attempts": 4, "payload": "6 bytes"}),
        (Edit(at=4), "jobs.edit", {"at": 4}),
        (RunNow(), "jobs.run_now", {}),
        (Discard(), "jobs.discard", {}),
    ],
)
def test_a_change_of_jobs_says_what_was_asked(change: Change, action: str, after: dict[str, Any]) -> None:
    former = (Former(A, "send", "mail", Status.DEAD, 1, 2, 3, 4),)
    deed = of_alter(Selection((A, B)), change, Tally(changed=1, former=former))
    assert deed == Deed(action=action, target="2 jobs", after=after, former=former)
    asked = of_alter(Selection((A,)), change, Tally(cancel_requested=1))
    assert asked is not None
    assert asked.target == "job 61616161-6161-6161-6161-616161616161"
    assert of_alter(Selection((A,)), change, Tally(missing=1)) is None
    entry = AuditEntry(5, By("maria"), deed)
    assert unpack(pack(entry)) == entry


@pytest.mark.spec("AUDIT-02")
def test_a_setting_shows_what_differs_and_no_payload() -> None:
    before, after = Queue(name="mail"), Queue(name="mail", workers=2)
    assert of_setting("queues.tune", "queue mail", before, before) is None
    assert of_setting("queues.tune", "queue mail", None, None) is None
    assert of_setting("x", "y", before, after) == Deed(
        action="x", target="y", before={"workers": None}, after={"workers": 2}
    )
    numbers = of_setting("x", "y", before, Queue(name="mail", limits=(("api", 3),)))
    assert numbers is not None
    assert numbers.after == {"limits": [["api", 3]]}
    template = Draft(bytes(16), "send", payload=b"secret", queue="mail")
    made = of_setting("schedules.put", "z", None, Schedule(name="z", expression="@daily", template=template))
    assert made is not None
    assert made.after["template"]["kind"] == "send"
    assert "secret" not in str(made)


@pytest.mark.spec("AUDIT-02")
def test_letters_and_consumers() -> None:
    chosen = LetterFilter(stream="orders")
    assert of_letters(chosen, None, Letters(3)) is None
    assert of_letters(chosen, CountLetters(), Letters(3)) is None
    assert of_letters(chosen, Clean(5), Letters(0)) is None
    assert of_letters(chosen, Clean(5), Letters(3)) == Deed(action="letters.clean", target="letters of orders", count=3)
    everywhere = of_letters(LetterFilter(), Clean(5), Letters(1))
    assert everywhere is not None
    assert everywhere.target == "letters of all streams"
    assert of_steer("orders", "mailer", Resume(), done=False) is None
    assert of_steer("orders", "mailer", Resume(), done=True) == Deed(
        action="outbox.resume", target="consumer mailer of orders"
    )


@pytest.mark.spec("AUDIT-03")
def test_the_latest_entries_come_first() -> None:
    entries = [AuditEntry(at, By("ann"), Deed(action="jobs.cancel", target=str(at))) for at in range(5)]
    assert [one.at for one in latest(entries, AuditQuery(since=1, until=4, limit=2))] == [3, 2]
    assert latest(entries, AuditQuery(limit=-1)) == []
    assert len(latest(entries, AuditQuery(action="jobs."))) == 5
    assert len(latest(entries, AuditQuery(action="jobs.cancel"))) == 5
    assert latest(entries, AuditQuery(action="jobs.cance")) == []

"""The audit log as values: who, what was done, and what an entry must not tell."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from stoker.model.audit import (
    HIDDEN,
    LENGTHS,
    MOMENTS,
    AuditEntry,
    AuditQuery,
    By,
    Deed,
    difference,
    in_words,
    instant_of,
    latest,
    line,
    of_acknowledgement,
    of_alter,
    of_letters,
    of_operation,
    of_setting,
    of_signal,
    of_steer,
    of_token,
    pack,
    readable,
    unpack,
)
from stoker.model.budgets import Budget, Rates
from stoker.model.control import Pause, Queue
from stoker.model.errors import InvalidInput
from stoker.model.findings import Acknowledgement
from stoker.model.job import Draft, Status
from stoker.model.operations import Operation
from stoker.model.outbox.consumers import Resume
from stoker.model.outbox.letters import Clean, LetterFilter, Letters
from stoker.model.outbox.letters import Count as CountLetters
from stoker.model.query import Cancel, Change, Clone, Discard, Edit, Former, Move, Prioritize, RunNow, Selection, Tally
from stoker.model.retry import Curve
from stoker.model.schedule import Schedule
from stoker.model.steps import Signal, Signaled
from stoker.model.throttle import Cooldown, Rate, full
from stoker.model.time import DAY, MINUTE, SECOND
from stoker.model.tokens import AccessToken, digest

A, B = b"a" * 16, b"b" * 16


def test_an_acknowledged_finding_is_a_deed() -> None:
    first = Acknowledgement(finding="dead:mail", by="ann", reason="known", at=1, until=2, tone="bad")
    again = msgspec.structs.replace(first, until=3)
    assert of_acknowledgement("dead:mail", None, first) == Deed(
        action="findings.acknowledge", target="finding dead:mail", after={"reason": "known", "until": 2}
    )
    assert of_acknowledgement("dead:mail", first, again).before == {"until": 2}
    assert of_acknowledgement("dead:mail", first, None).action == "findings.withdraw"


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
        (Clone((A, B)), "jobs.retry", {}),
        (Discard(), "jobs.discard", {}),
    ],
)
def test_a_change_of_jobs_says_what_was_asked(change: Change, action: str, after: dict[str, Any]) -> None:
    former = (Former(A, "send", "mail", Status.DEAD, 1, 2, 3, 4),)
    deed = of_alter(Selection((A, B)), change, Tally(changed=1, former=former))
    assert deed == Deed(action=action, target="2 jobs", after=after, former=former)
    asked = of_alter(Selection((A,)), change, Tally(cancel_requested=1))
    assert asked is not None
    assert (asked.target, asked.count) == ("job 61616161-6161-6161-6161-616161616161", 1)
    both = of_alter(Selection((A, B)), change, Tally(changed=1, cancel_requested=1))
    assert both is not None
    assert both.count == 2, "one was canceled, and one was asked to stop"
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


@pytest.mark.spec("AUDIT-08")
def test_a_deed_is_said_in_words() -> None:
    def said(action: str, before: dict[str, Any] | None = None, after: dict[str, Any] | None = None) -> str:
        return in_words(action, before or {}, after or {})

    assert said("jobs.run_now") == "Made due"
    assert said("jobs.burn") == "jobs.burn"
    assert said("queues.tune", {"pause": None}, {"pause": {"by": "maria"}}) == "Paused"
    assert said("queues.tune", {"pause": {"by": "maria"}}, {"pause": None}) == "Resumed"
    assert said("queues.tune", {"workers": 4}, {"workers": 6}) == "Tuned"
    assert said("schedules.put", None, {"enabled": True}) == "Created"
    assert said("schedules.put", {"enabled": True}, {"enabled": False}) == "Paused"
    assert said("schedules.put", {"enabled": False}, {"enabled": True}) == "Resumed"
    assert said("schedules.put", {"cron": "1"}, {"cron": "2"}) == "Changed"


SAID = """
acknowledge Acknowledged; change Changed; create Created; drain Drained; drop Dropped; enqueue Enqueued;
export Exported; import Imported; pause Paused; put Changed; quiet Quieted; release Released a key of; replace
Replaced; replay Replayed; resolve Resolved; resume Resumed; reveal Looked into; revoke Revoked; run Ran;
search Searched payloads of; seek Moved; signal Signaled; stack Asked for the stacks of; start Started; stop
Stopped; take_back Took back the jobs of; tune Tuned; withdraw Withdrew the acknowledgement of; requeue
Requeued; retry Copied; fork Forked; run_now Made due; cancel Canceled; discard Discarded; restore Restored;
edit Edited; move Moved; prioritize Prioritized; delete Deleted
"""


@pytest.mark.spec("AUDIT-08")
@pytest.mark.parametrize("pair", " ".join(SAID.split()).split("; "))
def test_every_deed_has_its_verb(pair: str) -> None:
    verb, _, words = pair.partition(" ")
    assert in_words(f"things.{verb}", {}, {}) == words


@pytest.mark.spec("AUDIT-03")
def test_the_latest_entries_come_first() -> None:
    entries = [AuditEntry(at, By("ann"), Deed(action="jobs.cancel", target=str(at))) for at in range(5)]
    assert [one.at for one in latest(entries, AuditQuery(since=1, until=4, limit=2))] == [3, 2]
    assert latest(entries, AuditQuery(limit=-1)) == []
    assert len(latest(entries, AuditQuery(action="jobs."))) == 5
    assert len(latest(entries, AuditQuery(action="jobs.cancel"))) == 5
    assert latest(entries, AuditQuery(action="jobs.cance")) == []


@pytest.mark.spec("AUDIT-07")
def test_an_entry_has_an_id_from_which_its_time_is_read() -> None:
    at = 1_800_000_000_000_000
    one, other = (AuditEntry(at, By("ann"), Deed(action="jobs.cancel", target=name)) for name in "ab")
    assert one.id == unpack(pack(one)).id != other.id
    assert instant_of(one.id) == instant_of(other.id) == at
    for wrong in ("", "x" * 24, one.id + "0", one.id.upper()):
        with pytest.raises(InvalidInput, match="stoker audit"):
            instant_of(wrong)


@pytest.mark.spec("AUDIT-09")
def test_an_entry_is_one_line_that_no_text_in_it_forges() -> None:
    plain = AuditEntry(0, By("ann"), Deed(action="jobs.cancel", target="job 1"))
    assert line(plain) == ('at="1970-01-01T00:00:00Z" who="ann" way="code" action="jobs.cancel" target="job 1" count=1')
    changed = Deed(action="queues.tune", target="queue a", before={"workers": 0}, after={"workers": 5})
    odd = line(AuditEntry(0, By("a\nb", "page", "\u202e\x1b", "r-1"), changed))
    assert odd.isprintable()
    assert odd.isascii()
    assert odd.endswith(
        'request="r-1" action="queues.tune" target="queue a" count=1 before={"workers": 0} after={"workers": 5}'
    )


@pytest.mark.spec("AUDIT-06")
def test_tokens_and_operations_are_told_by_what_was_done() -> None:
    secret = digest("x")
    token = AccessToken(name="ci", sha256=secret)
    used = AccessToken(name="ci", sha256=secret, last_used=3)
    revoked = AccessToken(name="ci", sha256=secret, revoked=4)
    actions = [of_token(before, after).action for before, after in ((None, token), (token, used), (token, revoked))]
    assert actions == ["tokens.create", "tokens.change", "tokens.revoke"]
    assert secret not in str(of_token(None, token))
    running, stopping, stopped = (
        Operation(
            id="7", who="ann", action="move", filter="is:dead", change={"queue": "b"}, bound=1, started=1, state=s
        )
        for s in ("running", "stopping", "stopped")
    )
    looked = msgspec.structs.replace(running, filter="is:dead payload:4111")
    assert of_operation(None, looked).after["filter"] == looked.shown_filter == "is:dead payload:[hidden]"
    letters = msgspec.structs.replace(running, action="replay-letters", filter="stream:orders")
    assert letters.shown_filter == "stream:orders"
    assert of_operation(None, running).after == {"action": "move", "filter": "is:dead", "queue": "b"}
    steps = [(running, stopping), (running, stopped), (stopped, running)]
    assert of_operation(running, stopped).before == {"state": "running"}
    assert of_operation(running, stopped).after == {"state": "stopped"}
    told = [of_operation(before, after).action for before, after in steps]
    assert told == ["operations.stop", "operations.stop", "operations.resume"]


@pytest.mark.spec("AUDIT-10")
def test_people_read_moments_and_spans_not_microseconds() -> None:
    before = Queue(name="mail", pause=Pause(until=90 * SECOND, reason="a migration"))
    after = Queue(
        name="mail",
        limits=(("api", 3), ("sms", 1)),
        bucket=full(Rate(5, per=10), 7),
        keep_done=2 * DAY,
        curve=Curve(on=True, base=SECOND, max=MINUTE),
        fair=True,
    )
    deed = of_setting("queues.tune", "queue mail", before, after)
    assert deed is not None
    shown = readable(deed.after)
    assert (shown["keep_done"], shown["rate"], shown["pause"]) == (timedelta(days=2), Rate(5, per=10), None)
    assert "bucket" not in shown, "tokens come and go by themselves"
    assert difference(readable(deed.before), shown) == (
        "curve – → base 1.0 s, max 1 min; fair no → yes; keep_done 7 days → 2 days; limits – → api 3, sms 1; "
        "pause until 1970-01-01T00:01:30Z, reason a migration → –; rate – → 5 per 10 s"
    )
    assert difference({}, readable({"at": 4 * SECOND, "pause": {"until": None}, "workers": 4, "queues": ["mail"]})) == (
        "at 1970-01-01T00:00:04Z; pause yes; queues mail; workers 4"
    )
    assert 'after={"keep_done": "2 days"}' in line(
        AuditEntry(5, By("x"), Deed(action="x", target="y", after={"keep_done": 2 * DAY}))
    )


@pytest.mark.spec("AUDIT-10")
def test_every_stored_time_of_an_entry_is_known() -> None:
    stored = (Queue, Pause, Cooldown, Curve, Budget, Rates, Schedule, Draft, Edit)
    kept = {name: text for one in stored for name, text in one.__annotations__.items() if name not in HIDDEN}
    assert {name for name, text in kept.items() if "Instant" in text} == MOMENTS
    assert {name for name, text in kept.items() if "Span" in text} == LENGTHS


@pytest.mark.spec("ANSWER-11")
@pytest.mark.parametrize("answer", list(Signaled))
def test_a_signal_that_is_stored_is_a_deed(answer: Signaled) -> None:
    deed = of_signal(Signal(A, "approval", b'"secret"'), answer)
    if answer in (Signaled.TAKEN, Signaled.EARLY):
        assert deed is not None
        assert (deed.action, deed.after) == ("jobs.signal", {"name": "approval"})
        assert in_words(deed.action, deed.before, deed.after) == "Signaled"
    else:
        assert deed is None


@pytest.mark.spec("NEED-22")
def test_an_acknowledgement_and_its_withdrawal_are_deeds() -> None:
    known = Acknowledgement(finding="deaths", by="ada", reason="a bad file", at=0, until=DAY, tone="bad", figure=3)
    first, again = of_acknowledgement("deaths", None, known), of_acknowledgement("deaths", known, known)
    assert (first.action, first.target, first.before) == ("findings.acknowledge", "finding deaths", {})
    assert first.after == again.after == {"reason": "a bad file", "until": DAY}
    assert again.before == {"until": DAY}
    ended = of_acknowledgement("deaths", known, None)
    assert (ended.action, ended.after) == ("findings.withdraw", {})
    assert in_words(first.action, {}, first.after) == "Acknowledged"
    assert in_words(ended.action, {}, {}) == "Withdrew the acknowledgement of"


@pytest.mark.spec("AUDIT-06")
def test_a_new_token_shows_what_it_may_do_and_a_change_of_one_does_not() -> None:
    token = AccessToken(name="ci", sha256="0" * 64, role="operate", queues=("mail",))
    assert of_token(None, token).after == {"role": "operate", "queues": ["mail"]}
    assert of_token(token, token).after == {}


@pytest.mark.spec("AUDIT-03")
def test_entries_are_found_by_what_they_changed() -> None:
    entry = AuditEntry(5, By("ann"), Deed(action="queues.tune", target="queue mail"))
    assert AuditQuery(target="queue mail").matches(entry)
    assert not AuditQuery(target="queue sms").matches(entry)

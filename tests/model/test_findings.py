"""What needs a person, in sentences."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from stoker.model.control import Pause, Presence, Queue
from stoker.model.findings import (
    PAGES,
    Acknowledgement,
    Deaths,
    Delivery,
    Finding,
    Situation,
    badges,
    findings,
    late_queues,
    limited_queues,
    verdict,
)
from stoker.model.job import Draft, Status
from stoker.model.query import Census, Count
from stoker.model.schedule import NO_ID, UNREADABLE, Action, Schedule
from stoker.model.throttle import Bucket, Cooldown, Rate
from stoker.model.time import HOUR, MINUTE, SECOND, instant

NOW = instant(datetime(2026, 11, 16, 14, 28, 7, tzinfo=UTC))


def presence(worker: str = "w", **given: object) -> Presence:
    fields = {"host": "fra-3", "pid": 2207, "queues": {"mail": 5}, "kinds": {"send": "a.send"}, "seen_at": NOW} | given
    return Presence(worker=worker, **fields)  # type: ignore[arg-type]


def census(n: int = 3, *, lag: int = 0, queue: str = "mail", kind: str = "send") -> Census:
    return Census(at=NOW, counts=(Count(queue, kind, Status.PENDING, n),), oldest_ready={queue: NOW - lag})


def schedule(name: str, late: int, **given: object) -> Schedule:
    fields = {"expression": "0 * * * *", "template": Draft(NO_ID, "report"), "next_fire": NOW - late} | given
    return Schedule(name=name, **fields)  # type: ignore[arg-type]


def told(**given: object) -> list[str]:
    situation = {"census": census(), "presences": [presence()]} | given
    return [str(one) for one in findings(Situation(**situation))]  # type: ignore[arg-type]


@pytest.mark.spec("NEED-01")
def test_a_store_without_trouble_has_no_findings() -> None:
    assert told() == []
    assert verdict([]) == "Everything keeps up"


@pytest.mark.spec("NEED-02")
def test_a_silent_worker_that_holds_jobs_is_named() -> None:
    gone = presence(seen_at=NOW - 14 * SECOND, running=6)
    mend = "Look at its log and restart it."
    assert told(presences=[presence("v"), gone]) == [
        f"fra-3 / 2207 was last seen 14.0 s ago. If it stays silent its 6 jobs go to another worker at 14:28:08. {mend}"
    ]
    quiet = [presence("v"), presence(seen_at=NOW - 14 * SECOND), presence(seen_at=0, running=1, state="stopped")]
    assert told(presences=quiet) == []
    [one] = told(presences=[presence("v"), presence(seen_at=NOW - 11 * SECOND, running=1, lease=40 * SECOND)])
    assert "its 1 job goes to another worker at 14:28:36." in one, "by the lease of that worker"
    [late] = told(presences=[presence("v"), presence(seen_at=NOW - 60 * SECOND, running=6)])
    assert "The lease of its 6 jobs ran out at 14:27:22: another worker takes them." in late


@pytest.mark.spec("NEED-10")
def test_a_silent_worker_whose_jobs_were_taken_over_is_history() -> None:
    gone = [presence("v"), presence(seen_at=NOW - 60 * SECOND, running=6)]
    assert told(presences=gone, held={"v": 3}) == []
    assert "its 2 jobs" in told(presences=gone, held={"v": 3, "w": 2})[0], "what it holds, not what it reported last"


@pytest.mark.spec("NEED-11")
def test_several_silent_workers_are_one_finding() -> None:
    gone = [presence(f"w{n}", pid=n, seen_at=NOW - (10 + n) * SECOND, running=2) for n in range(1, 6)]
    assert told(presences=[presence("v"), *gone]) == [
        (
            "5 workers were last seen up to 15.0 s ago: fra-3 / 5, fra-3 / 4, fra-3 / 3 and 2 more. If they stay "
            "silent their 10 jobs go to another worker at 14:28:11. Look at their logs and restart them."
        )
    ]
    two = told(presences=[presence("v"), *gone[:2]])
    assert len(two) == 1
    assert "fra-3 / 2, fra-3 / 1. If they" in two[0]


@pytest.mark.spec("NEED-03", "ORDER-07")
def test_ready_jobs_without_a_worker_are_named_by_queue_and_kind() -> None:
    other = presence(queues={"bills": 1})
    assert told(presences=[other]) == [
        "mail has 3 ready jobs and no worker. They wait until one serves it. Run `stoker work app:jobs -q mail`."
    ]
    assert told(presences=[other, presence("5e.ab", state="quiet")]) == [
        (
            "mail has 3 ready jobs, and its workers are quiet. A user told them to claim nothing. "
            "Run `stoker workers resume 5e.ab`."
        )
    ]
    assert told(presences=[presence("5e.ab", state="quiet"), presence()]) == []
    assert told(presences=[other], census=Census(at=NOW)) == []
    assert told(presences=[other], census=Census(at=NOW, counts=(Count("mail", "send", Status.DEAD, 3),))) == []
    assert told(census=census(1, kind="legacy")) == [
        (
            "legacy has 1 waiting job in mail and no worker of that queue knows it. "
            "They are put back again and again, and are dead after a while. Deploy the task to the workers of mail."
        )
    ]
    assert told(census=census(kind="legacy"), presences=[presence(kinds={})]) == []  # it did not say what it knows


@pytest.mark.spec("NEED-12")
def test_jobs_in_a_misspelt_queue_are_offered_the_queue_that_was_meant() -> None:
    misspelt = census(1, queue="maill")
    [found] = findings(Situation(census=misspelt, presences=[presence()]))
    assert found.remedy == "stoker jobs move queue:maill --to mail"
    assert found.detail == "If maill is a typing error, move them to mail; else start `stoker work app:jobs -q maill`."
    [home] = findings(Situation(census=misspelt, presences=[presence()], homes={"send": "letters"}))
    assert home.remedy == "stoker jobs move queue:maill --to letters", "the task's own queue comes first"
    [far] = findings(Situation(census=census(1, queue="reports"), presences=[presence()], homes={"send": "reports"}))
    assert far.remedy == "stoker work app:jobs -q reports"
    [unable] = findings(Situation(census=misspelt, presences=[presence(kinds={"other": "x"})]))
    assert unable.remedy == "stoker work app:jobs -q maill", "no worker there knows the task"
    [named] = findings(Situation(census=misspelt, presences=[presence(kinds={"other": "x"})], app="shop:jobs"))
    assert named.remedy == "stoker work shop:jobs -q maill"


@pytest.mark.spec("NEED-13")
def test_no_worker_at_all_is_one_finding() -> None:
    counts = tuple(Count(f"q{n}", "send", Status.PENDING, 2) for n in range(30))
    many = Census(at=NOW, counts=counts, oldest_ready={f"q{n}": NOW - 9 * MINUTE for n in range(30)})
    gone = [presence(f"w{n}", seen_at=NOW - 5 * MINUTE, running=1) for n in range(30)]
    late = [schedule("hourly", 9 * MINUTE), schedule("later", -MINUTE), schedule("off", HOUR, enabled=False)]
    slow = [Delivery("orders", "analytics", 34 * SECOND)]
    found = findings(Situation(census=many, presences=gone, schedules=late, deliveries=slow))
    assert [(one.tone, one.noun, str(one)) for one in found] == [
        (
            "bad",
            "worker",
            (
                "No worker has been at work for 5 min. 60 due jobs, 1 due schedule, 1 consumer and 30 jobs of silent "
                "workers wait for one. Run `stoker work app:jobs`."
            ),
        )
    ]
    assert told(presences=[]) == ["No worker is at work. 3 due jobs wait for one. Run `stoker work app:jobs`."]
    [named] = told(presences=[], app="shop:jobs")
    assert named.endswith("Run `stoker work shop:jobs`."), named
    [held] = told(presences=[presence(seen_at=NOW - HOUR, running=1)], census=Census(at=NOW))
    assert held.startswith("No worker has been at work for 1 h. 1 job of silent workers waits for one."), held


@pytest.mark.spec("NEED-13")
def test_a_worker_may_be_replaced_and_nothing_is_due_without_trouble() -> None:
    def tones(seen: int, **given: object) -> list[str]:
        gone = presence(seen_at=NOW - seen * SECOND, state="stopped")
        return [one.tone for one in findings(Situation(presences=[gone], **given))]  # type: ignore[arg-type]

    assert tones(60, census=census()) == ["plain"]
    assert tones(61, census=census()) == ["bad"]
    assert tones(3_600, census=Census(at=NOW)) == [], "nothing is due"
    assert tones(61, census=Census(at=NOW), schedules=[schedule("hourly", SECOND)]) == ["bad"]
    paused = [Queue(name="mail", pause=Pause())]
    assert tones(3_600, census=census(), queues=paused) == ["plain"], "what is due is paused"
    silent = presence(seen_at=NOW - 30 * SECOND, running=1)
    assert [one.tone for one in findings(Situation(census=census(), presences=[silent]))] == ["bad", "plain"]


@pytest.mark.spec("NEED-04")
def test_many_deaths_in_an_hour_are_compared_with_the_day() -> None:
    def tones(deaths: Deaths) -> list[str]:
        return [one.tone for one in findings(Situation(census=Census(at=NOW), deaths=deaths))]

    assert tones(Deaths(0)) == []
    assert tones(Deaths(1)) == tones(Deaths(10)) == ["plain"], "a line, not a finding"
    assert tones(Deaths(100, day=2_400)) == ["plain"]
    assert tones(Deaths(214, day=240)) == ["bad"]
    known = Deaths(214, 214, 240, True, 187, "KeyError: 'sku'", "imports.parse")
    [found] = findings(Situation(census=Census(at=NOW), deaths=known))
    assert str(found) == (
        "214 jobs died in the last hour, 187 of them with the same error. KeyError: 'sku' in imports.parse. "
        "Run `stoker jobs list is:dead finished:1h`."
    )
    all_same = msgspec.structs.replace(known, same=214)
    assert "214 jobs died in the last hour, all with the same error." in told(deaths=all_same)[0]
    alone = msgspec.structs.replace(known, same=1)
    assert "214 jobs died in the last hour. KeyError" in told(deaths=alone)[0], "none shares its error with another"
    more = msgspec.structs.replace(all_same, complete=False)
    assert "More than 214 jobs died in the last hour, 214 of them with" in told(deaths=more)[0]
    assert found.filter == "is:dead finished:1h"
    assert (known.figure, Deaths(0).figure) == ("214 in the last hour", "none in the last hour")


@pytest.mark.spec("NEED-14")
def test_more_deaths_than_dead_jobs_are_told_apart() -> None:
    again = Deaths(1_955, 4_272, 4_272)
    assert again.figure == "1,955 in the last hour, of 4,272 deaths"
    assert told(deaths=again)[0].startswith(
        "1,955 jobs died in the last hour; with those that were requeued, discarded or deleted since there were "
        "4,272 deaths."
    )
    uncounted = Deaths(10_000, 12_000, complete=False)
    about = Deaths(2_000, 2_100, complete=False, about=True)
    assert (about.figure, about.again) == ("about 2,000 in the last hour", False)
    assert uncounted.figure == "more than 10,000 in the last hour"
    assert told(deaths=uncounted)[0].startswith("More than 10,000 jobs died in the last hour. ")
    assert told(deaths=about)[0].startswith("About 2,000 jobs died in the last hour. ")


@pytest.mark.spec("NEED-05")
def test_a_queue_that_falls_behind_is_named() -> None:
    assert told(census=census(lag=MINUTE)) == []
    assert told(census=census(18_402, lag=252 * SECOND)) == [
        (
            "mail is falling behind. 18,402 jobs are ready and the oldest has waited 4 min 12 s. "
            "Its workers have free slots: look at their logs."
        )
    ]
    busy = Census(
        at=NOW,
        counts=(Count("mail", "send", Status.PENDING, 1), Count("mail", "send", Status.RUNNING, 5)),
        oldest_ready={"mail": NOW - 252 * SECOND},
    )
    assert told(census=busy)[0].endswith("Run `stoker work app:jobs -q mail`.")
    assert told(census=busy, app="shop:jobs")[0].endswith("Run `stoker work shop:jobs -q mail`.")
    assert told(census=census(lag=MINUTE + 1), late_after=2 * MINUTE) == []


@pytest.mark.spec("NEED-15")
def test_a_wait_that_is_usual_in_a_queue_is_no_finding() -> None:
    slow = {"census": census(lag=5 * MINUTE), "presences": [presence()]}
    assert told(**slow, usual={"mail": MINUTE}) == []
    assert len(told(**slow, usual={"mail": MINUTE - 1})) == 1
    assert len(told(**slow, usual={"bills": HOUR})) == 1


@pytest.mark.spec("NEED-16")
def test_more_workers_are_not_advised_where_they_would_not_help() -> None:
    bucket = Bucket(Rate(10, per=60), 0, NOW)
    running = Census(
        at=NOW,
        counts=(Count("mail", "send", Status.PENDING, 3), Count("mail", "send", Status.RUNNING, 2)),
        oldest_ready={"mail": NOW - 9 * MINUTE},
    )
    ready = "3 jobs are ready and the oldest has waited 9 min."
    shut: list[tuple[dict[str, object], str]] = [
        ({"queues": [Queue(name="mail", bucket=bucket)]}, f"mail is at its rate of 10 in 1 min. {ready}"),
        ({"queues": [Queue(name="mail", workers=2)]}, f"mail runs as many at once as it may, which are 2. {ready}"),
        ({"full": {"mail": "api"}}, f"mail is held back by its limit api. {ready}"),
    ]
    for given, said in shut:
        situation = Situation(census=running, presences=[presence()], **given)  # type: ignore[arg-type]
        [found] = findings(situation)
        assert (found.tone, str(found)) == ("plain", said)
        assert (limited_queues(situation), late_queues(situation)) == (["mail"], [])
    cooling = Queue(name="mail", cooldown=Cooldown(NOW + MINUTE, 6))
    assert told(census=census(1, lag=9 * MINUTE), queues=[cooling]) == [
        (
            "mail cools down until 14:29:07. 1 job is ready and the oldest has waited 9 min. "
            "6 throttled runs in a row made it. Wait until then, or end it: stoker queues reopen mail."
        )
    ]
    once = msgspec.structs.replace(cooling, cooldown=Cooldown(NOW + MINUTE, 1))
    assert "A throttled run made it." in told(census=census(1, lag=9 * MINUTE), queues=[once])[0]
    assert told(census=census(0), queues=[cooling]) == []
    [unserved] = told(queues=[cooling], presences=[presence(queues={"bills": 1})])
    assert unserved.startswith("mail has 3 ready jobs and no worker."), "one cause, one finding"
    assert told(queues=[Queue(name="mail", cooldown=cooling.cooldown, pause=Pause())]) == [
        "mail is paused. 3 jobs wait in it."
    ]
    open_again = Queue(name="mail", bucket=Bucket(Rate(10, per=60), 5, NOW), workers=9)
    assert "is falling behind" in told(census=census(lag=9 * MINUTE), queues=[open_again])[0]


@pytest.mark.spec("NEED-06")
def test_a_paused_queue_is_worth_knowing_and_not_counted() -> None:
    paused = Queue(name="mail", pause=Pause(by="maria", reason="bad file"))
    found = findings(Situation(census=census(lag=9 * MINUTE), queues=[paused], presences=[]))
    assert [str(one) for one in found] == ["mail is paused by maria: “bad file”. 3 jobs wait in it."]
    assert verdict(found) == "Everything keeps up"
    assert badges(found) == {}
    assert told(queues=[Queue(name="mail", pause=Pause())], presences=[]) == ["mail is paused. 3 jobs wait in it."]
    assert told(queues=[Queue(name="idle", pause=Pause()), Queue(name="mail")]) == []
    [forgotten] = findings(Situation(census=census(1, lag=25 * HOUR), queues=[paused], presences=[presence()]))
    assert (forgotten.tone, forgotten.remedy) == ("warn", "stoker queues resume mail")
    assert forgotten.detail == "1 job waits in it, the oldest for 1 day 1 h; it may have been forgotten."


@pytest.mark.spec("NEED-17")
def test_a_schedule_that_is_overdue_is_bad() -> None:
    def tones(late: int, **given: object) -> list[str]:
        return [one.tone for one in findings(Situation(census=Census(at=NOW), presences=[presence()], schedules=[
            schedule("monthly", late, **given)
        ]))]  # fmt: skip

    assert tones(MINUTE) == [], "it may be as late as its grace and a minute"
    assert tones(MINUTE + 1) == ["bad"]
    assert tones(MINUTE + 1, grace=0) == ["bad"]
    assert tones(MINUTE, grace=0) == tones(HOUR, grace=HOUR) == tones(HOUR, enabled=False) == []
    assert tones(-HOUR, last_error="no such zone", last_status=Action.FAIL) == ["warn"]
    assert tones(HOUR, last_error="no such zone", last_status=Action.FAIL) == ["bad"], "one finding of both"
    assert told(schedules=[schedule("monthly", HOUR)]) == [
        (
            "monthly is overdue by 1 h. Workers are there, and none of them ticks. "
            "Look at their logs for what keeps the schedules from ticking."
        )
    ]
    never = msgspec.structs.replace(schedule("new", 0), next_fire=None)
    torn = schedule("torn", HOUR, expression="", template=Draft(NO_ID, UNREADABLE))
    assert told(schedules=[never, torn]) == []
    assert told(schedules=[torn], presences=[], census=Census(at=NOW)) == [], "it never fires"


@pytest.mark.spec("NEED-07")
def test_schedules_consumers_and_versions_have_their_sentences() -> None:
    failed = schedule("monthly", -HOUR, last_error="no such zone Europe/Kiew", last_status=Action.DISABLE)
    assert told(schedules=[failed]) == [
        "monthly could not fire. no such zone Europe/Kiew. Run `stoker schedules show monthly`."
    ]
    slow = [Delivery("orders", "analytics", 34 * SECOND, 2, 1), Delivery("orders", "warehouse", SECOND)]
    assert told(deliveries=slow) == [
        (
            "orders / analytics has not delivered for 34.0 s and has 2 parked keys and has 1 letter to decide on. "
            "No worker runs it, or its handler fails again and again. Run `stoker outbox show orders`."
        )
    ]
    letters = [Delivery("orders", "analytics", letters=1), Delivery("orders", "mail", parked=1)]
    assert [
        one.remedy for one in findings(Situation(census=census(0), presences=[presence()], deliveries=letters))
    ] == [
        "stoker outbox letters orders",
        "stoker outbox letters orders --status parked",
    ]
    [stuck] = findings(Situation(census=census(0), presences=[presence()], deliveries=[Delivery("o", "c", HOUR)]))
    assert stuck.tone == "bad"
    mixed = [presence("a", version="0.4"), presence("b", version="0.4"), presence("c", version="0.3", host="fra-1")]
    assert told(presences=mixed) == [
        (
            "fra-1 runs Stoker 0.3 beside 0.4 on the others. Workers of two versions run the same jobs. "
            "Finish the deployment."
        )
    ]
    assert [one.tone for one in findings(Situation(census=census(0), presences=mixed))] == ["warn"]
    [merged] = told(presences=[*mixed, presence("d", version="0.4"), presence("e", version="0.3", host="fra-2")])
    assert merged.startswith("2 hosts run Stoker 0.3 beside 0.4 on the others.")


@pytest.mark.spec("NEED-08")
def test_the_title_counts_and_badges_tell_the_page() -> None:
    slow = [Delivery("orders", "analytics", letters=1)]
    found = findings(
        Situation(census=census(lag=9 * MINUTE), presences=[presence()], deliveries=slow, deaths=Deaths(11))
    )
    assert verdict(found) == "Three things need you"
    assert verdict(found[:1]) == "One thing needs you"
    assert verdict(found * 4) == "12 things need you"
    assert badges(found) == {"jobs": (1, "bad"), "queues": (1, "warn"), "outbox": (1, "warn")}


@pytest.mark.spec("NEED-13")
def test_retries_are_asked_for_where_no_live_worker_serves_their_queue() -> None:
    names = ("mail", "sms", "paused")
    counts = tuple(Count(name, "send", Status.RETRYING, 1) for name in names)
    paused = Queue(name="paused", pause=Pause())
    given = Situation(census=Census(at=NOW, counts=counts), queues=[paused], presences=[presence()])
    assert given.unserved_retries == ["sms"]
    assert told(census=given.census, queues=[paused], retries={"sms": 1}) == [
        "sms has 1 ready job and no worker. It waits until one serves it. Run `stoker work app:jobs -q sms`."
    ]


def ids_of(**given: object) -> list[str]:
    situation = {"census": census(), "presences": [presence()]} | given
    return [one.id for one in findings(Situation(**situation))]  # type: ignore[arg-type]


@pytest.mark.spec("NEED-20")
def test_the_id_of_a_finding_has_no_numbers_and_lasts() -> None:
    for n in (3, 12):
        assert ids_of(presences=[], census=census(n)) == ["no worker"]
        assert ids_of(census=census(n, queue="bulk")) == ["no worker: bulk"]
        assert ids_of(census=census(n, kind="call")) == ["unknown kind: call in mail"]
        assert ids_of(census=census(n, lag=n * HOUR)) == ["late: mail"]
        assert ids_of(deaths=Deaths(n)) == ["deaths"]
        gone = [presence(f"w{one}", pid=one, seen_at=NOW - 20 * SECOND, running=n) for one in range(n)]
        assert ids_of(presences=[presence(), gone[0]]) == ["silent worker: fra-3"]
        assert ids_of(presences=[presence(), *gone]) == ["silent workers"]
        assert ids_of(schedules=[schedule("report", n * HOUR)]) == ["overdue: report"]
        broken = schedule("report", 0, last_error="no", last_status=Action.FAIL)
        assert ids_of(schedules=[broken]) == ["could not fire: report"]
        assert ids_of(deliveries=[Delivery("orders", "mailer", letters=n)]) == ["letters: orders / mailer"]
        assert ids_of(deliveries=[Delivery("orders", "mailer", n * MINUTE)]) == ["not delivered: orders / mailer"]
        paused = Queue(name="mail", pause=Pause())
        assert ids_of(queues=[paused], census=census(n)) == ["paused: mail"]
        cooling = Queue(name="mail", cooldown=Cooldown(count=n, until=NOW + MINUTE))
        assert ids_of(queues=[cooling], census=census(n)) == ["cooling: mail"]
        held = Queue(name="mail", workers=0)
        assert ids_of(queues=[held], census=census(n, lag=n * HOUR)) == ["held back: mail"]
        versions = [presence(version="1.0"), presence("v", version=f"1.{n}")]
        assert ids_of(presences=versions) == ["two versions"]


SILENT = [presence(f"w{n}", pid=n, seen_at=NOW - 20 * SECOND, running=1) for n in range(2)]
ELSEWHERE = presence(queues={"bills": 1})


@pytest.mark.spec("NEED-08")
@pytest.mark.parametrize(
    ("given", "tone", "page"),
    [
        ({"presences": []}, "bad", "workers"),
        ({"presences": [presence(seen_at=NOW - MINUTE)]}, "plain", "workers"),
        ({"presences": [presence(), SILENT[0]]}, "bad", "workers"),
        ({"presences": [presence(), *SILENT]}, "bad", "workers"),
        ({"presences": [presence(version="1.0"), presence("v", version="1.1")]}, "warn", "workers"),
        ({"presences": [ELSEWHERE]}, "bad", "queues"),
        ({"presences": [ELSEWHERE, presence(state="quiet")]}, "bad", "queues"),
        ({"census": census(lag=HOUR)}, "warn", "queues"),
        ({"queues": [Queue(name="mail", workers=0)], "census": census(lag=HOUR)}, "plain", "queues"),
        ({"queues": [Queue(name="mail", cooldown=Cooldown(NOW + MINUTE, 6))]}, "warn", "queues"),
        ({"queues": [Queue(name="mail", pause=Pause())]}, "plain", "queues"),
        ({"queues": [Queue(name="mail", pause=Pause())], "census": census(lag=25 * HOUR)}, "warn", "queues"),
        ({"census": census(kind="legacy")}, "bad", "kinds"),
        ({"deaths": Deaths(3)}, "plain", "jobs"),
        ({"deaths": Deaths(11)}, "bad", "jobs"),
        ({"schedules": [schedule("report", HOUR)]}, "bad", "schedules"),
        ({"schedules": [schedule("report", 0, last_error="no", last_status=Action.FAIL)]}, "warn", "schedules"),
        ({"deliveries": [Delivery("orders", "mail", letters=1)]}, "warn", "outbox"),
        ({"deliveries": [Delivery("orders", "mail", MINUTE)]}, "warn", "outbox"),
        ({"deliveries": [Delivery("orders", "mail", HOUR)]}, "bad", "outbox"),
    ],
)
def test_a_finding_is_as_grave_as_its_cause_and_shown_on_its_page(given: dict[str, Any], tone: str, page: str) -> None:
    situation: dict[str, Any] = {"census": census(), "presences": [presence()]} | given
    [found] = findings(Situation(**situation))
    assert (found.tone, PAGES[found.noun]) == (tone, page)
    assert badges([found]) == ({} if tone == "plain" else {page: (1, tone)})


def figures_of(**given: object) -> list[int]:
    situation = {"census": census(), "presences": [presence()]} | given
    return [one.figure for one in findings(Situation(**situation))]  # type: ignore[arg-type]


@pytest.mark.spec("NEED-21")
def test_the_number_of_a_finding_tells_when_it_has_doubled() -> None:
    """It is how many jobs, workers, keys or letters are concerned; a time has none."""
    assert figures_of(presences=[], deliveries=[Delivery("o", "c", HOUR)]) == [4]
    assert figures_of(presences=[presence("v"), presence(seen_at=NOW - 20 * SECOND, running=6)]) == [6]
    assert figures_of(presences=[presence(), *SILENT]) == [2]
    assert figures_of(presences=[ELSEWHERE], census=census(7)) == [7]
    assert figures_of(presences=[ELSEWHERE, presence(state="quiet")], census=census(7)) == [7]
    assert figures_of(census=census(7, kind="legacy")) == [7]
    assert figures_of(census=census(7, lag=HOUR)) == [7]
    assert figures_of(census=census(7, lag=HOUR), queues=[Queue(name="mail", workers=0)]) == [7]
    assert figures_of(census=census(7), queues=[Queue(name="mail", cooldown=Cooldown(NOW + MINUTE, 6))]) == [7]
    assert figures_of(census=census(7), queues=[Queue(name="mail", pause=Pause())]) == [7]
    assert figures_of(deaths=Deaths(7)) == [7]
    assert figures_of(schedules=[schedule("report", HOUR)]) == [0]
    assert figures_of(deliveries=[Delivery("orders", "mail", HOUR, parked=2, letters=3)]) == [5]


def known(finding: str, **given: object) -> Acknowledgement:
    fields = {"by": "ada", "reason": "a migration", "at": NOW, "until": NOW + HOUR, "tone": "bad"} | given
    return Acknowledgement(finding=finding, **fields)  # type: ignore[arg-type]


@pytest.mark.spec("NEED-21")
def test_a_finding_that_a_person_knows_of_is_history() -> None:
    def bulk(n: int, *acknowledged: Acknowledgement) -> Finding:
        given = Situation(census=census(n, queue="bulk"), presences=[presence()], acknowledged=acknowledged)
        [one] = findings(given)
        return one

    assert bulk(3).tone == "bad"
    one = bulk(5, known("no worker: bulk", figure=3), known("late: mail"))
    assert (one.tone, verdict([one])) == ("plain", "Everything keeps up")
    assert str(one).endswith("until one serves it. Acknowledged by ada until 15:28 UTC: a migration.")
    assert bulk(6, known("no worker: bulk", figure=3)).tone == "bad", "its number has doubled"
    assert bulk(6, known("no worker: bulk")).tone == "plain", "it had no number"
    assert bulk(3, known("no worker: bulk", figure=3, until=NOW)).tone == "bad", "its time has passed"
    assert bulk(3, known("no worker: bulk", figure=3, tone="warn")).tone == "bad", "it is worse than then"
    assert bulk(3, known("no worker: mail", figure=3)).tone == "bad", "another one is known"
    assert "nobody by name" in str(bulk(3, known("no worker: bulk", by="")))


@pytest.mark.spec("NEED-13")
def test_what_needs_no_word_hides_nothing_behind_it() -> None:
    """Of three queues, by name, the first two have nothing to be told; the third is told of all the same."""
    counts = tuple(Count(name, "send", Status.PENDING, 3) for name in ("a", "b", "c"))
    waiting = Census(at=NOW, counts=counts, oldest_ready=dict.fromkeys("abc", NOW - HOUR))
    paused = [Queue(name="a"), Queue(name="b", pause=Pause(until=NOW - 1)), Queue(name="c", pause=Pause(by="ann"))]
    served = [presence(queues=dict.fromkeys("abc", 5))]
    assert any("c is paused by ann" in one for one in told(census=waiting, queues=paused, presences=served))
    elsewhere = [presence(queues={"a": 5})]
    closed = [Queue(name="b", pause=Pause())]
    alone = told(census=waiting, queues=closed, presences=elsewhere)
    assert any(one.startswith("queue c") or " c has" in one or "c has" in one for one in alone), alone
    cooling = [Queue(name=name, cooldown=Cooldown(NOW + MINUTE, 4)) for name in "abc"]
    only = told(census=waiting, queues=cooling, presences=[presence(queues={"c": 5})])
    assert any("c cools down" in one for one in only), only


@pytest.mark.spec("NEED-13")
def test_queues_that_wait_are_told_the_longest_wait_first() -> None:
    counts = tuple(Count(name, "send", Status.PENDING, 3) for name in ("a", "b"))
    given = Situation(
        census=Census(at=NOW, counts=counts, oldest_ready={"a": NOW - HOUR, "b": NOW - 2 * HOUR}),
        presences=[presence(queues={"a": 5, "b": 5})],
    )
    assert late_queues(given) == ["b", "a"]


@pytest.mark.spec("NEED-13")
def test_only_queues_with_retries_are_retried_by_nobody() -> None:
    none = Count("mail", "send", Status.RETRYING, 0)
    given = Situation(census=Census(at=NOW, counts=(none, Count("sms", "send", Status.DONE, 4))), presences=[])
    assert given.unserved_retries == []


@pytest.mark.spec("NEED-13")
def test_every_queue_without_workers_and_every_one_that_cools_is_told() -> None:
    counts = tuple(Count(name, "send", Status.PENDING, 3) for name in ("a", "b", "c"))
    waiting = Census(at=NOW, counts=counts, oldest_ready=dict.fromkeys("abc", NOW - HOUR))
    alone = told(census=waiting, presences=[presence(queues={"mail": 1})])
    assert [sum(f"{name} has 3 ready jobs" in one for one in alone) for name in "abc"] == [1, 1, 1], alone
    cooling = [Queue(name="c", cooldown=Cooldown(NOW + MINUTE, 4))]
    served = told(census=waiting, queues=cooling, presences=[presence(queues=dict.fromkeys("abc", 5))])
    assert any("c cools down" in one for one in served), served

"""What needs a person, in sentences."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from stoker.model.control import Pause, Presence, Queue
from stoker.model.findings import Deaths, Delivery, Situation, badges, findings, verdict
from stoker.model.job import Status
from stoker.model.query import Census, Count
from stoker.model.throttle import Cooldown
from stoker.model.time import MINUTE, SECOND, instant

NOW = instant(datetime(2026, 11, 16, 14, 28, 7, tzinfo=UTC))


def presence(worker: str = "w", **given: object) -> Presence:
    fields = {"host": "fra-3", "pid": 2207, "queues": {"mail": 5}, "kinds": {"send": "a.send"}, "seen_at": NOW} | given
    return Presence(worker=worker, **fields)  # type: ignore[arg-type]


def census(n: int = 3, *, lag: int = 0, queue: str = "mail", kind: str = "send") -> Census:
    return Census(at=NOW, counts=(Count(queue, kind, Status.PENDING, n),), oldest_ready={queue: NOW - lag})


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
    assert told(presences=[presence("v"), gone]) == [
        "fra-3 / 2207 was last seen 14.0 s ago. If it stays silent its 6 jobs go to another worker at 14:28:23."
    ]
    quiet = [presence("v"), presence(seen_at=NOW - 14 * SECOND), presence(seen_at=0, running=1, state="stopped")]
    assert told(presences=quiet) == []
    [one] = told(presences=[presence("v"), presence(seen_at=NOW - 11 * SECOND, running=1)], leases={"w": 15 * SECOND})
    assert one.endswith("its 1 job goes to another worker at 14:28:11.")
    [late] = told(presences=[presence("v"), presence(seen_at=NOW - 60 * SECOND, running=6)])
    assert late.endswith("The lease of its 6 jobs ran out at 14:27:37: another worker takes them.")


@pytest.mark.spec("NEED-03")
def test_ready_jobs_without_a_worker_are_named_by_queue_and_kind() -> None:
    assert told(presences=[]) == ["mail has 3 ready jobs and no worker. Start `stoker work app:jobs -q mail`."]
    assert told(presences=[], census=Census(at=NOW)) == []
    assert told(presences=[], census=Census(at=NOW, counts=(Count("mail", "send", Status.DEAD, 3),))) == []
    assert told(census=census(1, kind="legacy")) == [
        (
            "legacy has 1 waiting job in mail and no worker of that queue knows it. "
            "Deploy the task to the workers of this queue."
        )
    ]
    assert told(census=census(kind="legacy"), presences=[presence(kinds={})]) == []  # it did not say what it knows


@pytest.mark.spec("NEED-04")
def test_many_deaths_in_an_hour_are_compared_with_the_day() -> None:
    assert told(deaths=Deaths(10, 10)) == []
    assert told(deaths=Deaths(100, 2_400)) == []
    assert told(deaths=Deaths(214, 240)) == ["214 jobs died in the last hour."]
    known = Deaths(214, 240, 187, "KeyError: 'sku'", "imports.parse", "0193")
    assert told(deaths=known) == [
        "214 jobs died in the last hour, 187 of the latest with the same error. KeyError: 'sku' in imports.parse"
    ]
    [found] = findings(Situation(census=Census(at=NOW), deaths=known))
    assert found.filter == "same_error:0193"


@pytest.mark.spec("NEED-05")
def test_a_queue_that_falls_behind_or_cools_down_is_named() -> None:
    assert told(census=census(lag=MINUTE)) == []
    assert told(census=census(18_402, lag=252 * SECOND)) == [
        "mail is falling behind. 18,402 jobs are ready and the oldest has waited 4 min 12 s."
    ]
    cooling = Queue(name="mail", cooldown=Cooldown(NOW + MINUTE, 6))
    assert told(census=census(1, lag=SECOND), queues=[cooling]) == [
        (
            "mail cools down. 1 job is ready and the oldest has waited 1.0 s. "
            "It cools down until 14:29:07, after 6 throttled runs in a row."
        )
    ]
    assert told(census=census(0), queues=[cooling]) == []


@pytest.mark.spec("NEED-06")
def test_a_paused_queue_is_worth_knowing_and_not_counted() -> None:
    paused = Queue(name="mail", pause=Pause(by="maria", reason="bad file"))
    found = findings(Situation(census=census(lag=9 * MINUTE), queues=[paused], presences=[]))
    assert [str(one) for one in found] == ["mail is paused by maria: “bad file”. 3 jobs wait in it."]
    assert verdict(found) == "Everything keeps up"
    assert badges(found) == {}
    assert told(queues=[Queue(name="mail", pause=Pause())], presences=[]) == ["mail is paused. 3 jobs wait in it."]
    assert told(queues=[Queue(name="idle", pause=Pause()), Queue(name="mail")]) == []


@pytest.mark.spec("NEED-07")
def test_schedules_consumers_versions_and_the_store_have_their_sentences() -> None:
    assert told(failed_schedules={"monthly": "no such zone Europe/Kiew"}) == [
        "monthly could not fire. no such zone Europe/Kiew"
    ]
    slow = [Delivery("orders", "analytics", 34 * SECOND, 2, 1), Delivery("orders", "warehouse", SECOND)]
    assert told(deliveries=slow) == [
        "orders / analytics has not delivered for 34.0 s and has 2 parked keys and has 1 letter to decide on."
    ]
    mixed = [presence("a", version="0.4"), presence("b", version="0.4"), presence("c", version="0.3", host="fra-1")]
    assert told(presences=mixed) == ["fra-1 runs Stoker 0.3 beside 0.4 on the others. Finish the deployment."]
    assert told(problems=["A session holds a snapshot"], warnings=["TLS is off"]) == [
        "A session holds a snapshot.", "TLS is off.",
    ]  # fmt: skip


@pytest.mark.spec("NEED-08")
def test_the_title_counts_and_badges_tell_the_page() -> None:
    found = findings(Situation(census=census(lag=9 * MINUTE), presences=[presence()], problems=["a"], warnings=["b"]))
    assert verdict(found) == "Three things need you"
    assert verdict(found[:1]) == "One thing needs you"
    assert verdict(found * 4) == "12 things need you"
    assert badges(found) == {"health": (2, "bad"), "queues": (1, "warn")}

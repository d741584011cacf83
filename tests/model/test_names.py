"""Which queues and kinds are known."""

from __future__ import annotations

import pytest

from stoker.model.control import Presence, Queue
from stoker.model.errors import nearest
from stoker.model.job import Draft, Status
from stoker.model.names import MOST_LISTED, Names, hint, in_use, known, listed, meant_queue
from stoker.model.query import Census, Count, Totals
from stoker.model.schedule import Schedule
from stoker.model.time import HOUR, MINUTE

CENSUS = Census(at=HOUR, counts=(Count("mail", "send", Status.DEAD, 1),), totals={"old": Totals(completed=3)})


@pytest.mark.spec("FILTER-09")
def test_long_lists_of_names_are_cut() -> None:
    names = [f"q{n:03}" for n in range(MOST_LISTED + 2)]
    assert listed(names[:MOST_LISTED]) == ", ".join(names[:MOST_LISTED])
    assert listed(names[::-1]) == f"{', '.join(names[:MOST_LISTED])} and 2 more"
    assert listed(names[:-1]).endswith(" and 1 more")


@pytest.mark.spec("FILTER-09")
def test_jobs_that_are_stored_and_kinds_that_were_have_names() -> None:
    assert in_use(CENSUS) == Names(frozenset({"mail"}), frozenset({"send", "old"}))
    assert known(CENSUS) == in_use(CENSUS)


@pytest.mark.spec("FILTER-09")
def test_settings_schedules_and_live_workers_name_queues_and_kinds() -> None:
    schedule = Schedule(name="nightly", expression="0 3 * * *", template=Draft(bytes(16), "report", queue="reports"))
    here, gone = (
        Presence(worker=name, host="h", pid=1, queues={name: 2}, kinds={f"{name}_it": "app:f"}, seen_at=at)
        for name, at in (("resize", HOUR), ("forgotten", HOUR - 10 * MINUTE))
    )
    found = known(CENSUS, [Queue(name="bulk")], [schedule], [here, gone])
    assert found == Names(
        frozenset({"mail", "bulk", "reports", "resize"}), frozenset({"send", "old", "report", "resize_it"})
    )


def test_a_hint_names_the_nearest_or_what_there_is() -> None:
    assert hint("maill", ["mail", "bulk"]) == "Did you mean mail?"
    assert hint("zzz", ["mail", "bulk"]) == "Known are bulk, mail."
    assert hint("zzz", []) == "None is known."
    assert nearest("zzz", ["mail"]) == ""


@pytest.mark.spec("NEED-12")
def test_the_queue_that_was_meant_is_the_tasks_own_or_the_nearest_that_is_served() -> None:
    def worker(**given: object) -> Presence:
        fields = {"worker": "w", "host": "h", "pid": 1, "queues": {"mail": 1}, "seen_at": 9, **given}
        return Presence(**fields)  # type: ignore[arg-type]

    assert meant_queue("maill", "send", "letters", [worker()], 9) == "letters"
    assert meant_queue("maill", "send", "maill", [worker()], 9) == "mail", "its own queue has no worker"
    assert meant_queue("maill", "send", None, [worker(kinds={"send": "a.send"})], 9) == "mail"
    assert meant_queue("maill", "send", None, [worker(kinds={"other": "a.other"})], 9) is None
    assert meant_queue("maill", "send", None, [worker(state="stopped")], 9) is None
    assert meant_queue("reports", "send", None, [worker()], 9) is None
    assert meant_queue("mail", "send", None, [worker()], 9) is None

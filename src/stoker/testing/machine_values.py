"""What the lock-step machine draws: drafts, outcomes, changes, schedules and searches.

Values that repeat in a list are drawn more often.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from stoker.model.audit import By
from stoker.model.budgets import Rates, Spend
from stoker.model.emitted import SLOTS
from stoker.model.job import (
    Options,
    Status,
)
from stoker.model.limit import Slot
from stoker.model.outcome import (
    Canceled,
    Crashed,
    Done,
    Expired,
    Failed,
    HandedBack,
    Lost,
    Outcome,
    Panicked,
    Rejected,
    Snoozed,
    Throttled,
    TimedOut,
    Unfit,
)
from stoker.model.query import (
    ORDERS,
    Cancel,
    Change,
    Clone,
    Delete,
    Discard,
    Fork,
    Move,
    Prioritize,
    Requeue,
    RunNow,
)
from stoker.model.query import Edit as JobEdit
from stoker.model.schedule import Edit
from stoker.model.steps import Step, StepState
from stoker.model.throttle import Rate
from stoker.model.time import DAY, HOUR, MINUTE, SECOND
from stoker.model.unique import Unique

START = 1_800_000_000_000_000
QUEUES = ("red", "blue")
MARIA = By("maria", "page")

spans = st.sampled_from([0, 0, 0, 1, SECOND, HOUR])
uniques = st.builds(
    Unique,
    key=st.sampled_from(["k", "k", "l"]),
    scope=st.sampled_from(["kind", "kind", "global"]),
    mode=st.sampled_from(["existing", "existing", "existing", "replace", "raise"]),
    hold=st.sampled_from(["active", "active", "retrying"]),
    for_=st.sampled_from([None, None, None, 1, 3_600]),
).map(lambda one: msgspec.structs.replace(one, longest=1) if one.mode == "replace" and one.for_ else one)
slots = st.sampled_from(
    [
        Slot("api", "a", 1),
        Slot("api", "b", 2),
        Slot("gpu", None, 1),
        Slot("line", "a", 1, "retrying"),
        Slot("line", "b", 2, "retrying"),
        Slot("calls", "a", None, rate=Rate(1, per=3)),
    ]
)
options = st.builds(
    Options,
    keep=st.sampled_from([None, None, 0, SECOND]),
    expires=st.sampled_from([None, None, MINUTE]),
    limit=st.none() | slots,
)


def _with_fitting_delay(options: dict[str, Any]) -> dict[str, Any]:
    """A draft whose key lasts `longest` at most must not be delayed for longer."""
    unique = options["unique"]
    return {**options, "delay": 0} if unique is not None and unique.longest is not None else options


drafts: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["send", "push"]),
        "queue": st.sampled_from(QUEUES),
        "payload": st.sampled_from([b"{}", b'{"n":1.0,"e":[]}']),
        "priority": st.sampled_from([0, 0, -1, 1]),
        "delay": spans,
        "attempts": st.integers(1, 3),
        "unique": st.none() | uniques,
        "tenant": st.sampled_from([None, "acme", "bolt"]),
        "options": options,
    }
).map(_with_fitting_delay)
"""A draft but for its id."""

few = st.lists(drafts, max_size=2)
linked = st.none() | st.none() | drafts
"""What stands behind a job in a chain."""

schedules = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["hourly", "other"]),
        "expression": st.sampled_from(["0 * * * *", "0 * * * *", "@every 7s", "30 2 * * *"]),
        "tz": st.sampled_from(["UTC", "UTC", "America/New_York"]),
        "misfire": st.sampled_from(["once", "skip", "all"]),
        "overlap": st.sampled_from(["allow", "skip"]),
        "jitter": st.sampled_from([0, MINUTE]),
        "source": st.sampled_from(["code", "code", "api"]),
    }
)
"""A schedule but for its template."""

edits = st.builds(
    Edit,
    name=st.sampled_from(["hourly", "other"]),
    expression=st.sampled_from([None, None, "*/5 * * * *"]),
    enabled=st.sampled_from([None, True, True, False]),
    jitter=st.sampled_from([None, 0]),
)

good: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Done, result=st.sampled_from([None, b"1"])),
    st.builds(Snoozed, after=spans),
    st.builds(Throttled, retry_after=st.none() | spans, queue=st.sampled_from([False, False, True])),
    st.sampled_from([HandedBack(), Expired(), Unfit("unknown task")]),
)
bad: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Failed, error=st.just("broken"), after=st.none() | spans),
    st.builds(Failed, error=st.just("hopeless"), retry=st.just(False)),
    st.sampled_from(
        [Rejected("no"), Panicked("SystemExit"), Crashed("signal 9"), TimedOut(SECOND), Lost(), Canceled()]
    ),
    st.just(Crashed("signal 9", shared=True)),
)
waiting: st.SearchStrategy[Change] = st.one_of(
    st.builds(Cancel, force=st.booleans()),
    st.builds(RunNow, st.booleans()),
    st.builds(Move, queue=st.sampled_from(QUEUES)),
    st.builds(Prioritize, priority=st.integers(-2, 2)),
    st.sampled_from([JobEdit(attempts=4), JobEdit(payload=b'{"edited":true}', priority=1), JobEdit(at=START + DAY)]),
)
finished: st.SearchStrategy[Change] = st.sampled_from(
    [Requeue(), Requeue(), Clone(()), Fork(()), Discard(), Discard(), Delete(), JobEdit(priority=-2)]
)
signed = st.sampled_from([None, MARIA])
boxes = st.sampled_from(["go", "go", "go#2", "side"])
saved_steps = st.lists(
    st.builds(
        Step,
        boxes,
        st.sampled_from([state for state in StepState if state is not StepState.EARLY]),
        st.sampled_from([None, b"1"]),
        st.sampled_from([None, START + HOUR]),
    ),
    min_size=1,
    max_size=3,
)
pages = st.lists(
    st.integers(1, 9).map(lambda last: Step(SLOTS[last % 3], value=b"[]", until=last)),
    min_size=1,
    max_size=2,
    unique_by=lambda row: row.name,
)
"""Pages of emitted values; no two have the same last number."""

open_waits = st.lists(st.builds(Step, boxes, st.just(StepState.WAITING)), min_size=1, max_size=3)
questions = st.fixed_dictionaries(
    {
        "statuses": st.frozensets(st.sampled_from(list(Status)), max_size=3),
        "queues": st.frozensets(st.sampled_from(QUEUES), max_size=1),
        "kinds": st.frozensets(st.sampled_from(["send", "push"]), max_size=1),
        "tenant": st.sampled_from([None, None, "acme"]),
        "key": st.sampled_from([None, None, None, "k"]),
        "due": st.sampled_from([None, None, None, "now", "later", "waiting"]),
        "attempts_from": st.sampled_from([None, None, 1, 2]),
        "ended_by": st.sampled_from([None, None, START + MINUTE, START + HOUR]),
        "error": st.sampled_from([None, None, None, "broken"]),
        "payload": st.sampled_from([None, None, None, "edited"]),
        "order": st.sampled_from(ORDERS),
        "limit": st.sampled_from([1, 3, 50]),
    }
)
"""A search but for its windows."""

picks = st.integers(0, 40)
"""Which of the things at hand, counted from the newest and around."""

rates = st.sampled_from([Rate(1, per=60, burst=2), Rate(0.3, burst=4), Rate(1, per=3)])

mostly = st.sampled_from([True, True, True, False])
"""Most steps are aimed at what can succeed; the rest at what must be refused."""
measures = st.builds(Rates, st.dictionaries(st.sampled_from("xy"), rates, min_size=1), st.booleans())
spends = st.builds(
    Spend,
    st.dictionaries(st.sampled_from("xy"), st.integers(1, 4), min_size=1),
    st.sampled_from([None, "a", "b"]),
    st.booleans(),
)

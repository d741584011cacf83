"""Names and numbers that stand in stores, in answers of the API, or in users' code: a release must not change them."""

from __future__ import annotations

import enum
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import NODEFAULT, Struct

from stoker import model
from stoker.model.archive import Put
from stoker.model.emitted import What
from stoker.model.error_records import OTHER, Hourly
from stoker.model.events import EventType
from stoker.model.explain import Reason
from stoker.model.groups import GROUP, Standing
from stoker.model.health.check import Grade
from stoker.model.job import DEFAULT_QUEUE, LINEAGE, ORIGINAL, OWN_PRIORITY, PARENT, PLAIN, Status, Stored, Verdict
from stoker.model.lifecycle import HELD_BY, HELD_FOR, RESULT_WARNING, TOLD, UNFIT_SINCE, UNFIT_WHY
from stoker.model.operations import INTERRUPTED, RESEAL
from stoker.model.outbox import webhook
from stoker.model.outbox.batch_size import Ending, Pace
from stoker.model.outbox.cursor import Terms
from stoker.model.outbox.letters import LetterStatus
from stoker.model.outbox.stream import TOPIC
from stoker.model.query import CANCEL_REASON, Sweep
from stoker.model.retry import Curve, Exponential
from stoker.model.same_error import PREFIX
from stoker.model.schedule import OCCURRENCE, SCHEDULE, Action
from stoker.model.seal import MARK, OWN
from stoker.model.steps import GROUP_WAIT, PAGE_NAMES, Signaled, StepState, Wakes
from stoker.model.subqueues import TENANT
from stoker.model.throttle import Cooldown
from stoker.model.time import DAY, HOUR, MINUTE, SECOND
from stoker.model.unique import ALL_ARGUMENTS


@pytest.mark.spec("RECORD-10")
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Status, "pending running retrying done dead canceled discarded retried"),
        (Stored, "inserted existing replaced"),
        (Verdict, "applied repeated canceling lost held answered"),
        (Put, "stored existing blocked"),
        (Signaled, "taken early answered ended missing full unfit"),
        (Wakes, "any all"),
        (Standing, "waiting done dead canceled"),
        (Action, "idle seeded fired missed skipped error disabled"),
        (Grade, "ok note warning wrong"),
        (LetterStatus, "pending parked reprocessing resolved discarded"),
        (Ending, "delivered retry rejected"),
        (Sweep, "jobs events points presences locks keys receipts audit limits operations buckets"),
        (
            EventType,
            (
                "enqueued started completed retried failed canceled released waiting schedule_missed group_closed "
                "limit_repaired"
            ),
        ),
        (
            Reason,
            (
                "unreadable finished running canceling held_by_budget waiting scheduled paused cooling unknown_task "
                "no_worker worker_unhealthy rate_limited key_limited behind"
            ),
        ),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_values_of_a_kind_keep_their_names(kind: type[enum.StrEnum], values: str) -> None:
    assert [one.value for one in kind] == values.split()


@pytest.mark.spec("RECORD-10")
def test_numbers_that_are_stored_keep_their_meaning() -> None:
    assert [(one.name, one.value) for one in StepState] == [
        ("DONE", 0), ("FAILED", 1), ("WAITING", 2), ("EARLY", 3), ("CALLED", 4),
    ]  # fmt: skip
    assert [(one.name, one.value) for one in What] == [("VALUE", 0), ("PROGRESS", 1)]


@pytest.mark.spec("RECORD-10")
def test_what_stands_in_metadata_and_rows_keeps_its_name() -> None:
    own = [PARENT, ORIGINAL, LINEAGE, OWN_PRIORITY, GROUP, SCHEDULE, OCCURRENCE, CANCEL_REASON, RESULT_WARNING]
    own += [TOLD, UNFIT_SINCE, UNFIT_WHY, HELD_BY, HELD_FOR]
    assert " ".join(name.removeprefix(OWN) for name in own) == (
        "parent original lineage priority group schedule occurrence cancel_reason result_warning told unfit_since "
        "unfit held_by held_for"
    )
    assert (OWN, MARK, DEFAULT_QUEUE, TENANT, TOPIC) == ("stoker.", "~seal1~", "default", "@", "~")
    assert (GROUP_WAIT, PAGE_NAMES, ALL_ARGUMENTS, PREFIX, OTHER) == ("calls:", "!", "arguments:", "err_", "other")
    assert (INTERRUPTED, RESEAL) == ("interrupted", "reseal")
    headers = webhook.ID, webhook.TIMESTAMP, webhook.SIGNATURE, webhook.VERSION, webhook.PREFIX
    assert headers == ("webhook-id", "webhook-timestamp", "webhook-signature", "v1,", "whsec_")


EMPTY_CURVE = Curve(on=False, base=MINUTE, max=30 * MINUTE)
SOMETHING: dict[str, dict[str, object]] = {
    "access.Identity": {"role": "read"},
    "actions.Button": {"main": True},
    "actions.Action": {"role": "operate", "many": True},
    "archive._Line": {"options": PLAIN},
    "audit.By": {"way": "code"},
    "audit.Deed": {"count": 1},
    "audit.AuditQuery": {"limit": 100},
    "chunk.Chunk": {"within": 1.0},
    "control.Queue": {"keep_done": 7 * DAY, "keep_dead": 30 * DAY, "curve": EMPTY_CURVE, "cooldown": Cooldown()},
    "control.Presence": {"state": "running", "lease": 15 * SECOND},
    "cron.Cron": {"tz": "UTC"},
    "error_records.ErrorRecord": {"died": Hourly(), "retried": Hourly()},
    "events.Window": {"limit": 10_000},
    "explain.Line": {"complete": True},
    "findings.Deaths": {"complete": True},
    "findings.Situation": {"app": "app:jobs", "late_after": MINUTE},
    "health.facts.RedisNode": {"aof_written": True, "aof_rewritten": True, "snapshot_saved": True},
    "job.Draft": {"payload": b"{}", "queue": "default", "attempts": 5, "options": PLAIN},
    "job.MarkedDraft": {"payload": b"{}", "queue": "default", "attempts": 5, "options": PLAIN},
    "job.Claim": {"options": PLAIN, "curve": EMPTY_CURVE, "before": Status.PENDING},
    "job.Job": {"status": Status.PENDING, "options": PLAIN},
    "kind_stats.KindStats": {"bars": (0,) * 30},
    "lifecycle.Rules": {
        "default": Exponential(1.0, 2.0, 900.0, jitter="some"),
        "crash_limit": 3,
        "unfit_grace": HOUR,
        "roll": 0.5,
    },
    "limit.Slot": {"hold": "running"},
    "measures.Histogram": {"counts": [0] * 18},
    "operations.Operation": {"state": "running"},
    "outbox.batch_size.Pace": {
        "batch": 100,
        "idle": SECOND,
        "retry_base": SECOND,
        "retry_max": MINUTE,
        "threshold": 2,
    },
    "outbox.cursor.Consumer": {"start": "beginning"},
    "outbox.cursor.Terms": {"lease": 30 * SECOND, "headroom": 2 * SECOND},
    "outbox.cursor.LeaseRequest": {"terms": Terms(), "bytes": 4 << 20},
    "outbox.delivery.Rules": {"mode": "leased", "then": "letter", "pace": Pace()},
    "outbox.delivery.RetryLater": {"unit": 1},
    "outbox.letters.Letter": {"status": LetterStatus.PENDING},
    "outbox.letters.LetterFilter": {"status": LetterStatus.PENDING, "limit": 100},
    "outbox.stream.Stream": {"partitions": 1},
    "outcome.Failed": {"retry": True},
    "outcome.TimedOut": {"retry": True},
    "outcome.Throttled": {"queue": True},
    "outcome.Suspended": {"wakes": Wakes.ANY},
    "outcome.Canceled": {"why": "canceled while running"},
    "paging.PageOf": {"page": 1, "size": 25},
    "query.Query": {"order": "newest", "limit": 25},
    "query.Cancel": {"reason": "canceled by an operator"},
    "query.Retention": {
        "sweeps": frozenset(Sweep),
        "limit": 1_000,
        "events": 30 * DAY,
        "points": 30 * DAY,
        "kind_points": DAY,
        "presences": MINUTE,
        "audit": 90 * DAY,
        "operations": 30 * DAY,
    },
    "record.Record": {"status": Status.PENDING, "options": PLAIN},
    "retry.Linear": {"max": 900.0},
    "retry.Exponential": {"base": 1.0, "factor": 2.0, "max": 900.0, "jitter": "some"},
    "retry.Curve": {"base": MINUTE, "max": 30 * MINUTE},
    "scale.Work": {"slots": 10},
    "schedule.Schedule": {
        "tz": "UTC",
        "enabled": True,
        "misfire": "once",
        "overlap": "allow",
        "grace": MINUTE,
        "source": "api",
    },
    "schedule.Tick": {"action": Action.IDLE},
    "steps.Signal": {"value": b"null"},
    "throttle.Rate": {"per": 1},
    "tokens.AccessToken": {"role": "read"},
    "unique.Unique": {"key": "arguments:", "scope": "kind", "mode": "existing", "hold": "active"},
}


def defaults() -> Iterator[tuple[str, dict[str, object]]]:
    """What each struct and tuple of the model holds where nothing was said, without what is nothing."""
    for module in pkgutil.walk_packages(model.__path__, f"{model.__name__}."):
        for name, kind in vars(importlib.import_module(module.name)).items():
            if getattr(kind, "__module__", "") != module.name or not isinstance(kind, type):
                continue
            found: dict[str, Any] = dict(getattr(kind, "_field_defaults", {}))
            if issubclass(kind, Struct):
                values = kind.__struct_defaults__
                found = dict(
                    zip(kind.__struct_fields__[len(kind.__struct_fields__) - len(values) :], values, strict=True)
                )
            made = {field: getattr(value, "factory", lambda value=value: value)() for field, value in found.items()}
            told = {field: value for field, value in made.items() if value and value is not NODEFAULT}
            if told:
                yield f"{module.name}.{name}".removeprefix(f"{model.__name__}."), told


@pytest.mark.spec("RECORD-10")
def test_what_a_value_leaves_out_is_nothing_but_for_these() -> None:
    """A store leaves out what has its default: another default would change what is stored already, and what a call
    means that says nothing.
    """
    assert dict(defaults()) == SOMETHING

"""Names and numbers that stand in stores, in answers of the API, or in users' code: a release must not change them."""

from __future__ import annotations

import enum

import pytest
from msgspec import NODEFAULT, Struct, structs

from stoker.model.archive import Put
from stoker.model.emitted import What
from stoker.model.error_records import OTHER
from stoker.model.events import EventType
from stoker.model.explain import Reason
from stoker.model.groups import GROUP, Standing
from stoker.model.health.check import Grade
from stoker.model.health.facts import RedisNode
from stoker.model.job import DEFAULT_QUEUE, LINEAGE, ORIGINAL, OWN_PRIORITY, PARENT, PLAIN, Status, Stored, Verdict
from stoker.model.lifecycle import HELD_BY, HELD_FOR, RESULT_WARNING, TOLD, UNFIT_SINCE, UNFIT_WHY
from stoker.model.lifetime_bar import Part
from stoker.model.operations import INTERRUPTED, RESEAL
from stoker.model.outbox import webhook
from stoker.model.outbox.batch_size import Ending
from stoker.model.outbox.consumers import CursorState
from stoker.model.outbox.cursor import Consumer, Cursor, Lease
from stoker.model.outbox.letters import LetterStatus
from stoker.model.outbox.stream import TOPIC, Stream, Vacuumed
from stoker.model.query import CANCEL_REASON, Sweep
from stoker.model.record import Record
from stoker.model.run_origins import RunOrigin
from stoker.model.same_error import PREFIX
from stoker.model.schedule import OCCURRENCE, SCHEDULE, Action, Schedule
from stoker.model.seal import MARK, OWN
from stoker.model.steps import GROUP_WAIT, PAGE_NAMES, About, Signaled, StepState, Wakes
from stoker.model.subqueues import TENANT, State
from stoker.model.time import MINUTE
from stoker.model.tokens import AccessToken
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


@pytest.mark.spec("RECORD-10")
@pytest.mark.parametrize(
    ("kind", "others"),
    [
        (Record, {"status": Status.PENDING, "options": PLAIN}),
        (Cursor, {}),
        (Consumer, {"start": "beginning"}),
        (Lease, {}),
        (Stream, {"partitions": 1}),
        (Vacuumed, {}),
        (CursorState, {}),
        (RunOrigin, {}),
        (About, {}),
        (State, {}),
        (AccessToken, {"role": "read"}),
        (
            Schedule,
            {"tz": "UTC", "enabled": True, "misfire": "once", "overlap": "allow", "grace": MINUTE, "source": "api"},
        ),
        (Part, {}),
        (RedisNode, {"aof_written": True, "aof_rewritten": True, "snapshot_saved": True}),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_a_record_leaves_out_is_nothing_but_for_these(kind: type[Struct], others: dict[str, object]) -> None:
    """A store leaves out what has its default: another default would change what is stored already."""
    defaults = {one.name: one.default for one in structs.fields(kind) if one.default is not NODEFAULT}
    assert {name: value for name, value in defaults.items() if value} == others

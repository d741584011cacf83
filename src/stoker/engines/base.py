"""The contract that every engine keeps.

Methods take and return lists of values from `model`; "nothing to do" is a value, not an exception; a driver's errors
are translated once, in the engine's `connection.py`. Every docstring below states what is atomic, in which order
results come and what the empty case returns. `stoker.testing.conformance` is this file as tests.

An engine object belongs to one event loop and one process. `for_loop` makes another on the same store, for
another loop. Time is the store's own: an engine opened with `clock=` uses that instead, so tests move time without
waiting.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Protocol, Self, TypeAlias, TypeVar

import msgspec

from stoker.engines.call_times import CallTimes
from stoker.model.archive import Archived, Put
from stoker.model.audit import AuditEntry, AuditQuery, By, Deed
from stoker.model.budgets import Budget, KeyBuckets, Rates, Spend
from stoker.model.control import Presence, Queue, Tuning
from stoker.model.errors import EngineRefused
from stoker.model.events import Event, EventCount, Latency, Point, Window
from stoker.model.groups import Closing, Group, Swept
from stoker.model.health.facts import Facts
from stoker.model.ids import JobId
from stoker.model.job import LEASE as LEASE  # noqa: PLC0414 - engines and tests take it from the contract
from stoker.model.job import Claim, Demand, Draft, Job, Note, Receipt, Renewal, Settled, Settlement, Verdict
from stoker.model.kept import Kept, Part
from stoker.model.next_due import NextDue
from stoker.model.outbox.consumers import Steering, StreamState
from stoker.model.outbox.cursor import Consumer, Lease, LeaseRequest, NothingDue
from stoker.model.outbox.delivery import Advance, Advanced
from stoker.model.outbox.letters import LetterAction, LetterFilter, Letters
from stoker.model.outbox.stream import Entry, Stream, Vacuumed
from stoker.model.query import Census, Change, Expired, Page, Place, Query, Retention, Selection, Tally
from stoker.model.schedule import Edit, Fired, Schedule, Tick
from stoker.model.steps import Save, Signal, Signaled, Step
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import Grant, Rate
from stoker.model.time import SECOND, Instant, Span

Clock: TypeAlias = Callable[[], Instant]

T = TypeVar("T")

Transaction: TypeAlias = Any
"""The engine's own `transaction()` handle or a handle of the user's (see each engine)."""

ORPHANED_AFTER: Span = 5 * SECOND
"""A claim stored under a worker that does not hold it is an orphan only when it is older than this: a younger one may
still be on its way to the worker."""

CORRUPT = "stoker.corrupt"
"""The metadata key that names what of a record could not be read."""

PLACELESS = "it is neither waiting nor running nor finished"
"""Why a job cannot be read that has a body, and nothing that says where it stands."""

CONTROL = "@control"
"""The topic that wakes every lease keeper and ticker: for canceled jobs, changed schedules and orders to workers."""

TOKENS, SESSIONS, OPERATIONS = "tokens", "sessions", "operations"
ERRORS, ACKNOWLEDGED, RELEASES, ORIGINS = "error_records", "acknowledgements", "releases", "origins"
KIND_HOURS = "kind_hours"
ORDERS, STACKS, SEALS = "orders", "stacks", "seals"
"""Kinds of documents."""


class Feature(enum.StrEnum):
    """What an engine offers beyond the common contract. Cases that need one are skipped on engines without it."""

    DURABLE = "an acknowledged write survives the death of the process"
    SHARED = "several processes may use the store at once"
    OWN_TRANSACTION = "its own transaction() groups inserts and settlements"
    USER_TRANSACTION = "inserts and settlements join the user's own database transaction"
    REPEATED = "a settlement sent twice is recognised as repeated, not reported as lost"
    SIGN_OF_LIFE = "the death of a worker on this host is known at once, without waiting for its lease"
    ACROSS_QUEUES = "one step reaches all queues: bulk calls, follow-ups into other queues, ids stored in another queue"
    KEYS_ACROSS_QUEUES = "a unique key may be global, and jobs of its kind may go to several queues"
    BESIDE_TRANSACTIONS = "an open transaction holds up nothing but what needs the very keys that it took"
    CLOSES_AT_ONCE = "the write that ends a group's last member closes the group"
    OUTBOX = "streams, whose messages are appended in the transaction of the user's own data, and inboxes"
    SERVER = "the store is a server, which may be away for a while: `stoker work` waits for it at the start"


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What the store is, read from it and never assumed. `warnings` are shown at start-up and in doctor."""

    engine: str
    version: str
    durable: bool
    durability: str
    facts: dict[str, str] = {}
    size: int | None = None
    log_size: int | None = None
    """Bytes of the log that the store writes ahead of its data, where it can tell."""

    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What is worth knowing and harms nothing of Stoker's: a worker logs it once, and no other command prints it."""


class Jobs(Protocol):
    """Jobs and leases. Used by tasks (insert) and workers (everything)."""

    async def insert(
        self, drafts: Sequence[Draft], *, tx: Transaction | None = None, group: Group | None = None
    ) -> list[Receipt]:
        """Store drafts as pending jobs, due after their `delay` by the store's clock or at their `at`.

        Atomic: all or nothing for one call of up to 1,000 drafts. Order: receipts in the order of the drafts. A draft
        whose id is stored already gets the receipt `existing` with that id, so a repeated call is harmless. A draft
        with a unique key obeys `unique.meet` against the current holder, also against drafts before it in the same
        call; mode `raise` raises `Duplicate` and nothing of the call is stored. A superseded holder ends dead in the
        same step, and the receipt names it. With `tx` the jobs exist if and only if that transaction commits. After the
        commit one waiter per queue that received a new job that is due, or will be within `next_due.SOON`, is woken.
        A new `group` is stored in the same step; repeated, it stays as it is. One with `placed` says how many drafts of
        its maker are stored after this step: if so many are already, all receipts are `existing` and nothing is stored,
        whatever became of the jobs; if these are not the next ones, `InvalidInput` (`groups.placing`). A draft that
        names a group joins it: one that is closed raises `GroupClosed`, one that is not stored `NotFound`, and a draft
        that is stored already and is no member `InvalidInput`; then nothing of the call is stored. A draft that met the
        holder of its key joins nothing. Empty: `[]`.
        """
        ...

    async def claim(self, demand: Demand) -> list[Claim]:
        """Give due jobs to a worker.

        Only pending and retrying jobs whose scheduled time is at or before now, of queues that are neither paused nor
        cooling down. Order: queues as demanded; inside a queue by priority (lower first), scheduled time, id, over all
        jobs that may run: of those with a limit (`Options.limit`) no more run than it allows, by queue, name and key.
        In a fair queue subqueues take turns (`subqueues.take_turns`). What waits for a limit costs a claim nothing. At
        most the number requested per queue and in total, and of a queue with a rate at most as many as it has whole
        tokens; the claim takes one token for each job that it hands out, in the same step. Atomic: no job goes to two
        workers; a job is running, with a rising token and one more attempt, when the call returns. Claiming a retrying
        job makes its key strong again and clears a cancel flag of an earlier run. `Claim.fresh`: no claim of the job
        was ever handed out before. `Claim.rows`: what a suspended job had stored, as it was when it became due or
        later, if that is little (`steps.brought`). A worker without a live lease gets nothing. Empty: `[]`.
        """
        ...

    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        tx: Transaction | None = None,
        demand: Demand | None = None,
    ) -> Settled:
        """End claims, and take new ones in the same step when `demand` is given.

        Each settlement applies only while the job runs under exactly its worker and token (`lost` otherwise, or
        `repeated` where the store can tell that this very settlement applied before); only if `lifecycle.accepts` it
        (`canceling` otherwise: conclude again). Record, history, counters, cool-down, key, follow-ups and what the
        job's group counts change together or not at all; a settlement that does not apply changes nothing and does not
        hinder the others. So do `steps` and `groups` of a settlement (`Steps`): a suspension whose waits have their
        answers is due at once. One that meets a lock of an open transaction is `held`, with nothing of it written, and
        the others are written at once. Order: verdicts in the order of the settlements. Settlements come before the
        claim. Empty: no verdicts.
        """
        ...

    async def renew(
        self,
        worker: str,
        held: Sequence[tuple[JobId, int]],
        *,
        lease: Span = LEASE,
        first: bool = False,
    ) -> Renewal:
        """Extend a worker's lease to now + `lease` and compare what it holds with what is stored under it.

        `first=True` makes the lease of a worker that was never seen. A worker whose lease was reaped is unknown, for
        ever: `known=False`, and nothing is extended. `lost`: held but not stored under this worker and token.
        `canceling`: held, and to be canceled. `orphaned`: stored under this worker for more than `ORPHANED_AFTER`, not
        held. `orders`: the document of the kind `ORDERS` under the worker's id. A lease of 0 lapses at once: a worker
        releases it so when it stops. One that `job.check_lease` refuses raises `InvalidInput` and changes nothing.
        Empty: `known=True`, empty lists and no orders.
        """
        ...

    async def note(self, notes: Sequence[Note], *, tx: Transaction | None = None) -> list[Verdict]:
        """Write progress, metadata and log lines on running jobs, fenced like a settlement, one by one.

        With `tx` they are stored if and only if that commits; a job noted on there is held in it, or its siblings may
        wait. Order: verdicts in the order of the notes. Empty: `[]`.
        """
        ...

    async def reap(self, by: str, limit: int, *, dead: Sequence[str] = ()) -> list[Claim]:
        """Pass claims of lapsed workers, and of workers named `dead`, to the living worker `by`.

        Atomic per call: each claim changes owner under a new token, attempts unchanged, with the former owner and the
        former claim time; the former owners become unknown once nothing is stored under them. A lease is lapsed
        strictly after its end. Never reaps `by` itself. Oldest claims first, at most `limit`. Named locks that lapsed
        and dead workers hold under their id are released; `CONTROL` is woken if there was one. Empty: `[]`.
        """
        ...

    async def ahead(self, queues: Sequence[str]) -> NextDue:
        """Return how long a worker of these queues may sleep, by the store's clock.

        `open`: those that are neither paused nor cooling down nor out of tokens, also when the store does not know
        them. `wait`: the time until the next of their jobs is due, 0 when one has been due for less than
        `next_due.SOON` (longer: it may be reported, a claim finds it anyway); of a queue that cools down or is paused
        for a while the time until its end, of one with jobs and no token the time until the next, at most
        `throttle.LONGEST_SLEEP`. `later`: when `wait` is 0, the same for what is not due yet, so that a queue which
        workers cannot empty hides no other. None: nothing will become due before a queue is woken or this is called
        again. Empty: no queue, None.
        """
        ...

    async def wait(self, topics: Sequence[str], timeout: float) -> frozenset[str]:
        """Sleep until one of the topics is woken or `timeout` real seconds have passed.

        A queue's wake-up releases one waiter of this engine, and is remembered once when there is none. `CONTROL`
        reaches every engine on the store and is remembered once by each that ever waited for it. Empty set: timeout.
        """
        ...

    async def ended(self, job: JobId, timeout: float) -> bool:
        """Sleep until a job has ended or is gone, at most `timeout` real seconds; return whether it has.

        The result is a hint: the caller reads the record next. The settlement that ends the job wakes the waiters of
        every engine on the store; a wake-up that was lost costs half a second. All waiters of an engine share its
        reads, and settling a job without waiters costs nothing more.
        """
        ...

    async def news(self, job: JobId, seen: int, timeout: float) -> int:
        """Sleep until there is news of a job since `seen`, at most `timeout` real seconds; return how much there was.

        News are saved rows and settlements, on every engine of the store. The number is what `seen` is to be next time
        (0 at first), so what comes between two calls is not missed. It is a hint: a caller reads once a second anyhow,
        and reads after the first call, from which on other engines know that the job is watched. A job without
        watchers costs nothing more.
        """
        ...

    async def wake(self, topics: Sequence[str]) -> None:
        """Wake waiters of the topics, in every process that the engine can reach."""
        ...


class Operator(Protocol):
    """Reads and changes by operators. Used by `Admin`."""

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        """The jobs, in the order of the ids; None where there is none. Empty: `[]`."""
        ...

    async def find(self, query: Query, *, tx: Transaction | None = None) -> Page:
        """One page in the order asked, starting after the cursor of the page before.

        Reads no more than `LONGEST_WALK` records; a page that stops there may hold fewer jobs than requested but
        carries a cursor. `cursor=None`: there are no more. With `tx` it is what that transaction sees, with its own
        writes, and nothing is locked. Empty: an empty page without cursor.
        """
        ...

    async def census(self) -> Census:
        """Every count at one instant, from counters, without reading the jobs.

        Counts are exact. An engine may report `oldest_ready` and `oldest_running` up to ten seconds late where finding
        them is dear (Postgres under a held snapshot).
        """
        ...

    async def alter(self, selection: Selection, change: Change, *, by: By | None = None) -> Tally:
        """Apply a change to the selected jobs.

        Atomic per call. Each job is judged by the status it has inside the write (`actions.allows`) and by the key
        rule; one that is missing, refused or blocked by a key does not hinder the others. A running job that is to be
        canceled or deleted is marked, with `Cancel.note()` in its metadata, and `CONTROL` is woken; a forced cancel
        ends it at once, and its worker's settlement will be lost. Deleting removes the job's events. Jobs that became
        due wake a waiter of their queue. `by`: the audit log gets an entry in the same step, if anything changed.
        Empty: a tally of zeros.
        """
        ...

    async def put(self, jobs: Sequence[Archived]) -> list[Put]:
        """Store jobs of another store as they were there, finished ones too, with their steps and their ids.

        Atomic per call of up to 1,000 jobs where one step reaches all queues, else per queue. A job whose id is stored
        is left as it is (`existing`), so a repeated call is harmless. An active job whose unique key another one holds
        is not stored (`blocked`); a success keeps its key for the time that is left, if the key is free. No total
        counts them, and none joins a group. Jobs that are due wake a waiter of their queue. Order: in
        that of the jobs. Empty: `[]`.
        """
        ...

    async def kept(self, part: Part, after: str | None = None, limit: int = 100) -> list[Kept]:
        """The rows of a part with the places behind `after`, at most `limit`, always in the same order. Empty: `[]`."""
        ...

    async def count_kept(self, part: Part) -> int:
        """How many rows a part has."""
        ...

    async def swap_kept(self, part: Part, swaps: Sequence[tuple[Kept, Kept]]) -> int:
        """Store the values of rows in another form, each row only while its values are as they were read.

        Returns how many rows were; one that is gone, or was written since, does not hinder the others. A callback that
        was read before is stored as a job when the call returns, or will be stored in its new form. Empty: 0.
        """
        ...

    async def expire(self, retention: Retention) -> Expired:
        """Remove up to `limit` finished jobs past their expiry (then those nearest to it, down to `finished`) with
        their events, and old events, points, presences, lapsed named locks, audit entries and operations that were not
        written for long; only what `retention.sweeps` names.

        Each sweep is a step of its own, in the order of `Sweep`: an error in one leaves removed what those before it
        removed. Never active jobs. The sweep of limits counts the slots of subqueues that have been full for a minute
        (`subqueues.suspicious`) against the stored claims; `repairs` are the numbers that were wrong, at most `limit`,
        and a waiter of their queue is woken. Empty: zeros.
        """
        ...


class Groups(Protocol):
    """Groups: jobs that are counted together. Used by apps and workers.

    Whatever changes a job counts in its group in the same step (`groups.changes`). A group that is sealed, and whose
    members are all finished, closes: its callbacks are stored in the write that closes it, once. A group that `wakes` a
    job answers that wait in the same write; an engine without `Feature.CLOSES_AT_ONCE` may do so before it, again after
    a death, and never not at all.
    """

    async def get(self, ids: Sequence[JobId]) -> list[Group | None]:
        """The groups, in the order of the ids; None where there is none. Empty: `[]`."""
        ...

    async def find(self, *, closed: bool, behind: Place | None = None, limit: int = 100) -> list[Group]:
        """The groups that are closed, or those that are open, the one that was made last first, at most `limit`.

        Only those strictly behind a place, which is `created_at` and id of the last group before; of one instant the
        larger id comes first. Without the ids of their members. It reads what it returns and no more. Empty: `[]`.
        """
        ...

    async def seal(self, group: JobId, *, abandoned: bool = False) -> bool:
        """Seal a group, so that it closes when all members are finished; at once if they are.

        An abandoned group fails, whatever its members do. Returns False, and changes nothing, when there is no such
        group or it was sealed before.
        """
        ...

    def watch_closings(self, emit: Callable[[Closing], None]) -> None:
        """Call `emit` for each group that a call of this engine closes: once, after the commit, on the engine's loop.

        Other engines on the store emit nothing for it. Called again, it replaces the one before.
        """
        ...

    async def sweep(self, limit: int = 1_000) -> Swept:
        """Do what no other call will do, for up to `limit` groups each.

        Abandon groups that stayed unsealed for `ABANDONED_AFTER` since the last member joined, close those whose last
        end was written by a process that died before it closed them, and remove those past their retention. One that
        has a known member or a stored callback which is kept for longer stays: its `expires_at` becomes what
        `groups.kept_until` says. When its callbacks have ended, it lets go of members that it held for them
        (`groups.let_go`).
        """
        ...


class Steps(Protocol):
    """What jobs have finished and what they wait for, by name. Used by workers and by those who signal.

    The rules about rows are `model.steps`. Rows live as long as their job and are removed with it; a draft that
    replaces a waiting job (`unique.Meeting.REPLACE`) removes those of its earlier runs. A suspension is a settlement
    with `wakes`, which writes `Settlement.steps`, `groups` and `followups` in its own step. Suspensions, signals and
    closings of groups that meet at one job exclude each other: whichever comes second sees what the first one wrote, so
    a job that has what it waits for is always due.
    """

    async def save(self, saves: Sequence[Save], *, tx: Transaction | None = None) -> list[Verdict]:
        """Store rows of running jobs and the jobs they call.

        Each save applies only while the job runs under exactly its worker and token (`lost` otherwise), and is stored
        whole or not at all, independently of the others: `applied`, `held` as in `settle`, or `answered` when a row
        that ends a wait as failed meets the answer of that wait. A cancel request does not hinder it: the work is done.
        A row meets the stored one of its name by `steps.stored`; an open wait gets token 0. New `groups` are made by
        `groups.called_group` and `drafts` inserted like follow-ups: an id that is stored already is left as it is, so a
        repeated save is harmless. With `tx` all of it exists if and only if that commits, and the claim is to be held
        there first. Waiters of the queues of called jobs are woken. Order: verdicts in the order of the saves. Empty:
        `[]`.
        """
        ...

    async def get(self, ids: Sequence[JobId], *, pages: bool = False) -> list[list[Step]]:
        """The rows of jobs, in the order of the ids; each list by `at`, of one instant by name. Nothing stored: `[]`.

        What a save, a suspension or a signal has stored before the call is there: a run may decide by it. Pages of
        emitted values are among them only with `pages`.
        """
        ...

    async def asking(self, *, before: JobId | None = None, limit: int = 100) -> list[JobId]:
        """The jobs that have a row which may wait for a signal (`steps.asks`), the largest id first, at most `limit`.

        Only those with smaller ids than `before`. It reads such rows and no others, however many jobs sleep. Jobs that
        run or have ended may be among them. Empty: `[]`.
        """
        ...

    async def emitted(self, job: JobId, after: int = 0) -> list[Step]:
        """The pages of a job (`model.emitted`) whose last number is larger than `after`, by that number.

        They are read in one step, and whatever was saved before is there. Nothing newer, or no such job: `[]`.
        """
        ...

    async def signal(
        self, signals: Sequence[Signal], *, tx: Transaction | None = None, by: By | None = None
    ) -> list[Signaled]:
        """Answer waits, each signal independently of the others.

        `steps.target` chooses the row. Atomic per signal: the answer, and that its job becomes due (`Record.answered`),
        which wakes a waiter of its queue. A job that is not suspended on that very row keeps its due time: a signal
        shortens no backoff and no snooze. Where no run waits yet, the signal is kept (`early`), and a suspension or a
        save that opens the wait finds it. With `tx` it exists if and only if that commits. `by`: the audit log gets an
        entry for each signal that is stored, in the same step; not together with `tx`. Order: in that of the signals.
        Empty: `[]`.
        """
        ...


class Control(Protocol):
    """Queue settings, budgets, locks and presences. Used by `Admin` and workers."""

    async def queues(self) -> list[Queue]:
        """Every queue that was tuned, cooled or used, by name. Empty: `[]`."""
        ...

    async def tune(
        self, name: str, tuning: Tuning | Rate | Rates, *, declared: bool = False, by: By | None = None
    ) -> bool:
        """Patch a queue (`Tuning`) or set a budget (`Rate`, `Rates`), creating it when new.

        `declared`: this is what an app's code declares. The store keeps the last declaration, and a setting follows
        the code only while it has the value that was declared last (`control.declare`). Returns whether anything was
        written. A change that lets jobs start earlier (`control.opens`) wakes a waiter of the queue. `by`: with an
        entry in the audit log.
        """
        ...

    async def subqueues(
        self,
        queue: str,
        *,
        after: str | None = None,
        limit: int = 100,
        names: Sequence[str] | None = None,
        counted: bool = False,
    ) -> list[SubqueueView]:
        """The subqueues of a queue with names behind `after`, by name, at most `limit`; with `names` these alone.

        Each with what runs and may run, when its first job is due, and up to `subqueues.MOST_HOLDERS` holders of its
        slots, by id. `counted`: also how many of its jobs are due and wait, which costs as much as they are many. A
        subqueue in which nothing waits or runs need not be there. Empty: `[]`.
        """
        ...

    async def budgets(self) -> list[Budget]:
        """Every budget, by name. Empty: `[]`."""
        ...

    async def buckets(self, budget: str, *, limit: int = 100, keys: Sequence[str] | None = None) -> list[KeyBuckets]:
        """The keys of a budget whose buckets are kept, at most `limit`; with `keys` these alone.

        Those that are full again last come first (`budgets.full_at`), of several the last by name. A key whose buckets
        are full need not be there. Empty: `[]`.
        """
        ...

    async def spend(self, name: str, n: int | Spend = 1) -> Grant:
        """Take `n` tokens, or those of every measure that a `Spend` names, or none, in one atomic step.

        The first spend of a key makes its buckets, full. A budget that is unknown, has not all of the measures, or is
        keyed where the spend has no key or the other way round refuses without a `capacity`.
        """
        ...

    async def drain(self, name: str, *, key: str | None = None) -> bool:
        """Empty all buckets of a budget, or of one of its keys. False when there are none."""
        ...

    async def lock(self, name: str, owner: str, lease: Span) -> bool:
        """Take or extend a named lock. False when another owner holds it.

        An owner that is the id of a worker loses it with its lease, at the latest (`reap`).
        """
        ...

    async def unlock(self, name: str, owner: str) -> bool:
        """Release a named lock. False when `owner` was not the last to have it; its lease may have lapsed."""
        ...

    async def beat(self, presence: Presence) -> None:
        """Store a worker's presence with the store's time, in place of its earlier one."""
        ...

    async def workers(self) -> list[Presence]:
        """Every presence, by worker. Empty: `[]`."""
        ...


class Schedules(Protocol):
    """Schedules and their ticks. Used by apps and by the ticker of each worker."""

    async def read(self) -> list[Schedule]:
        """Every schedule, by name. One whose record cannot be read is disabled and says so. Empty: `[]`."""
        ...

    async def put(self, given: Schedule | Edit, *, keep_edited: bool = False, by: By | None = None) -> Schedule | None:
        """Store a schedule, or change the one that an `Edit` names, as `schedule.put` decides by the store's clock.

        Atomic: of two calls at once each works on what the other left. Returns the schedule as stored now; None for an
        edit of one that does not exist. What `schedule.check` refuses raises and changes nothing. A change wakes
        `CONTROL`. `by`: with an entry in the audit log.
        """
        ...

    async def drop(self, name: str, *, by: By | None = None) -> bool:
        """Forget a schedule; jobs that it made stay. False when there is none of that name. `by` as in `put`."""
        ...

    async def fire(self, tick: Tick, drafts: Sequence[Draft] = ()) -> Fired:
        """Store what a tick decided together with its jobs: a draft for each instant of `tick.fires`, in their order.

        Atomic: the schedule moves on and the jobs exist, or neither. Applies only while `schedule.applies` holds
        against the stored schedule and the store's clock; otherwise nothing changes. Drafts are inserted as by
        `insert`, but mode `raise` acts as `existing`: one that met an active job under its key is skipped
        (`schedule.met`). Where the store refuses the drafts the tick is stored without them (`schedule.failed`).
        Raises `EngineFull` where it has no room: nothing is stored, and the tick may be tried again.
        """
        ...


class Timeline(Protocol):
    """Events and measured points. Written by the app's event buffer, read by `Admin`."""

    async def record(
        self, events: Sequence[Event], points: Sequence[Point] = (), *, now: Instant, chunk: bytes | None = None
    ) -> int:
        """Append events and overwrite whole points, in one atomic step; returns how many events it was given.

        `now` is the recorder's reading of the clock its events are stamped with; each event is shifted by the
        difference to the store's clock. `chunk` is an id (16 random bytes) of this call: a call with an id that was
        written within `REMEMBERED` changes nothing and returns 0, so a call whose reply was lost can be repeated.
        Events of jobs that are gone are kept too, but those from before an operator deleted the job are not listed:
        deleting hides stored events, and those that come within `REMEMBERED`. Empty: 0.
        """
        ...

    async def events(self, window: Window) -> list[Event]:
        """Events of the half-open window, oldest first. Empty: `[]`."""
        ...

    async def event_counts(self, since: Instant, until: Instant) -> list[EventCount]:
        """How many events there are in the half-open window, by queue, type, kind and error; no zeros.

        Those of removed jobs are counted too: what happened stays true when the record is gone.
        """
        ...

    async def late_minutes(self, since: Instant) -> list[Instant]:
        """The minutes before `since` into which events were written late, by their beginnings, oldest first.

        `since` begins a minute. Late is what was written together with an event of `since` or later, or after the first
        such one.
        """
        ...

    async def latencies(self, window: Window) -> list[Latency]:
        """How long jobs took that were completed in the half-open window, latest first, at most `window.limit`.

        Read from the events of completed jobs, also of jobs that were removed since. Empty: `[]`.
        """
        ...

    async def points(
        self,
        since: Instant,
        until: Instant,
        metrics: Sequence[str],
        queues: frozenset[str] = frozenset(),
        *,
        width: Span | None = None,
    ) -> list[Point]:
        """Points whose bucket lies in the closed window, by bucket, queue and metric. No metrics: `[]`.

        `queues` are few and read without passing over the points of others; none given: those of every queue. With
        `width` points are merged into buckets of it, from `since` on, as `stats.merge` does.
        """
        ...


class Audit(Protocol):
    """Who changed what. Used by `Admin`; entries of changes are written by the changes themselves."""

    async def read(self, query: AuditQuery) -> list[AuditEntry]:
        """Entries, latest first, those of one instant in any order, at most `query.limit`. Empty: `[]`."""
        ...

    async def write(self, by: By, deed: Deed) -> AuditEntry:
        """Write an entry that belongs to no change: a payload was shown, an action refused, a user signed in."""
        ...


class Documents(Protocol):
    """Small records, read whole and changed by compare-and-set: tokens, sessions, operations, errors, orders.

    `stoker.admin.documents` knows their types; an engine stores bytes under a kind and a name.
    """

    async def read(self, kind: str) -> Sequence[bytes | str]:
        """Every document of a kind, in any order. Empty: no document."""
        ...

    async def swap(
        self, kind: str, name: str, before: bytes | None, after: bytes | None, *, by: tuple[By, Deed] | None = None
    ) -> bool:
        """Store `after` in place of `before`; None is no document, so a swap makes, changes or removes one.

        False, and nothing changed: another one than `before` is stored. Of two calls at once with different documents
        one succeeds. Where `after` is stored already the result may be True: a call whose reply was lost may be sent
        again. `by`: who did what, an entry in the audit log that is written in the same step.
        """
        ...


class Engine(Protocol):
    """A store: its facets, what it is, and its lifetime."""

    @property
    def jobs(self) -> Jobs:
        """Jobs and leases."""
        ...

    @property
    def operator(self) -> Operator:
        """What operators read and change of jobs."""
        ...

    @property
    def groups(self) -> Groups:
        """Jobs that are counted together."""
        ...

    @property
    def steps(self) -> Steps:
        """What jobs have finished and what they wait for."""
        ...

    @property
    def control(self) -> Control:
        """Queue settings, budgets, locks and presences."""
        ...

    @property
    def schedules(self) -> Schedules:
        """Schedules and their ticks."""
        ...

    @property
    def timeline(self) -> Timeline:
        """Events and points."""
        ...

    @property
    def documents(self) -> Documents:
        """Small records: tokens, sessions, operations and errors."""
        ...

    @property
    def audit(self) -> Audit:
        """The audit log."""
        ...

    @property
    def outbox(self) -> Outbox | None:
        """Streams, inboxes and held claims: None without `Feature.OUTBOX`. `outbox_of` returns it or refuses."""
        ...

    name: ClassVar[str]
    features: ClassVar[frozenset[Feature]]
    parallel_calls: ClassVar[int]
    """How many settle-and-claim calls a worker sends at once: 1 where no network is between worker and store."""

    most_bytes: ClassVar[int | None]
    """Bytes of payload after which a list of drafts is better stored by several calls; None: it makes no difference."""

    keep_done: Span
    """How long done jobs are kept where neither job nor queue nor app sets it."""

    call_times: CallTimes
    """The durations of this engine's store calls, also of those that raised, until they are drained or observed."""

    clock: Clock | None
    """The clock that it was given instead of the store's own, as tests do; time passes only when that says so."""

    history: int | None
    """Most finished jobs that stay after an `expire`, whatever its argument; None: any number. An option sets it."""

    @property
    def where(self) -> str:
        """Return where the store is: an absolute path, or an address without user and password."""
        ...

    @property
    def version(self) -> str:
        """Return the version of the store's software as the open engine knows it without asking, like `describe`."""
        ...

    async def open(self) -> None:
        """Connect, check the store, make or upgrade the schema where the engine does so. Opening twice is harmless."""
        ...

    async def close(self) -> None:
        """Release everything; what was acknowledged stays. Closing twice is harmless."""
        ...

    def for_loop(self, *, read_limit: float | None = None) -> Self:
        """Make another engine on the same store, not opened, for another event loop.

        With `read_limit` the store stops a statement that reads for more seconds than that, and the call raises
        `EngineSlow`: people's questions must not slow workers down. None: as with this engine.
        """
        ...

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """A transaction of the engine's own, to pass as `tx=`: commits when the block ends, rolls back if it raises.

        For statements of the user's its handle has `execute(statement, values)` and `raw`, the driver's connection,
        which is in the transaction once `begin()` was awaited. `rolled_back` is true after an end that raised and
        certainly stored nothing.
        """
        ...

    async def migrate(self, *, plan_only: bool = False, stopped: bool = False) -> list[str]:
        """Bring the schema up to date; return the statements that were (or would be) run. Empty: nothing to do.

        A migration that processes of older releases do not survive raises `SchemaMismatch`, which names them, and is
        not applied unless `stopped` says that they have stopped. A schema that is new needs no such word.
        """
        ...

    async def migration_script(self) -> str | None:
        """Return what `migrate` would do as an SQL script for another tool; changes nothing.

        Run as it stands, the script leaves a store that Stoker opens: schema, ledger and transactions are in it. With
        nothing to do it is a comment that says so. None: this store has no schema.
        """
        ...

    async def describe(self) -> Description:
        """What the store is and guarantees, read back now."""
        ...

    async def diagnose(self) -> Facts:
        """Read what a check-up judges: settings and state of the store, and counters beside bounded counts.

        Changes nothing. A counter and the count beside it are of one instant.
        """
        ...

    async def now(self) -> Instant:
        """The store's clock."""
        ...


class Outbox(Protocol):
    """Streams, inboxes and held claims. Engines with `Feature.OUTBOX` have it; `outbox_of` returns it.

    The numbers of a partition rise with commits: if a message was committed before another one of its partition was
    appended, it has the lower number. A call with `tx` exists if and only if that transaction commits.
    """

    async def register(
        self, stream: Stream, consumers: Sequence[Consumer] = (), *, tx: Transaction | None = None
    ) -> None:
        """Make a stream and its consumers known, in one step.

        A stream that is known gets the new `keep`; another count of partitions raises `InvalidOption` and nothing is
        stored. A new consumer gets a cursor for every partition at its start, `end` being behind everything that is
        committed now; a known consumer is left alone.
        """
        ...

    async def append(self, stream: Stream, entries: Sequence[Entry], *, tx: Transaction | None = None) -> None:
        """Append messages, all or none, in the order of the list. Registers the stream if it is not known.

        Another count of partitions raises `InvalidOption`, a partition outside of it `InvalidInput`; nothing is stored
        then. After the commit a waiter of the stream's topic is woken. Empty: nothing.
        """
        ...

    async def lease(self, request: LeaseRequest) -> Lease | NothingDue:
        """Take a partition that has something to deliver, and read it, in one step.

        `cursor.choose` decides which: due, not paused, and without a living holder whose lease goes on, the least
        recently served first. The cursor gets holder, token, end and one attempt more (`cursor.leased`). Read are, in
        this order of preference: the letters of a released key, by number; one letter that is due; the messages behind
        the position, by number, at most `cursor.wanted` and as many as `cursor.fitting`. No partition has two holders.
        What cannot be read rolls the lease back. A worker without a live lease of its own gets `NothingDue`, an unknown
        consumer raises `NotFound`. Empty: `NothingDue`, which says when time alone changes that, and whether another
        session is just numbering messages; nothing is written.
        """
        ...

    async def advance(
        self, advance: Advance, *, tx: Transaction | None = None, request: LeaseRequest | None = None
    ) -> Advanced:
        """Store the result of a delivery and release the partition, in one step, only while `delivery.applies`.

        Letters meet those that are stored by `letters.merge`. With `request` the same partition is leased again in the
        same step if it could be leased now and has something to deliver. `tx` and `request` exclude each other.
        """
        ...

    async def streams(self, names: Sequence[str] = ()) -> list[StreamState]:
        """The named streams, or all, by name, at one instant and without reading the messages. Empty: `[]`."""
        ...

    async def steer(self, stream: str, consumer: str, change: Steering, *, by: By | None = None) -> bool:
        """Change a consumer, in one step; False when there is no such consumer or parked key. `by` as in `letters`.

        A seek takes the leases away (`consumers.sought`). All but a pause and a drop wake the stream's waiters.
        """
        ...

    async def vacuum(self, stream: str, limit: int) -> Vacuumed:
        """Delete messages that every consumer has passed and `keep` has outlived, at most `limit`, in one step.

        Lowest numbers first; a partition's highest number stays known. Without consumers nothing. Empty: zero.
        """
        ...

    async def letters(
        self, chosen: LetterFilter, action: LetterAction | None = None, *, by: By | None = None
    ) -> Letters:
        """List letters, latest failure first, or apply an action to those it applies to, in one step.

        `letters.act` decides for each letter by its status inside the write; at most `chosen.limit` are listed or
        changed, but all are counted. Letters that became due wake the stream's waiters. `by`: with an entry in the
        audit log, if any changed. Empty: none.
        """
        ...

    async def receive(self, source: str, ids: Sequence[str], *, keep: Span, tx: Transaction | None) -> list[bool]:
        """Remember ids for at least `keep`; return for each, in order, whether it is new.

        The same id twice in one call: True, False. A concurrent call with the same id waits for this transaction to
        end, or one of them fails. `tx=None` is refused. `expire` forgets them afterwards. Empty: `[]`.
        """
        ...

    async def hold(self, claim: Claim, *, tx: Transaction) -> Claim | None:
        """Return the claim while it is still its worker's, None otherwise; to be called first in a transaction.

        A settlement of the returned claim in the same transaction can then fail only if the claim is lost meanwhile.
        """
        ...

    async def settle_last(self, settlement: Settlement, *, tx: Transaction) -> bool:
        """Settle a held claim as the last call of a transaction; return whether that applied, as `settle` would.

        In its own transaction an engine may do it with the commit, in one round trip: the commit then raises
        `LostClaim` if the claim was lost, and nothing is stored.
        """
        ...

    def notify_settled(self, settlements: Sequence[Settlement]) -> None:
        """Wake callers that wait for the end of jobs which a transaction has settled: it is committed.

        Called on the engine's loop. A hint, which changes nothing that is stored. Empty: nothing.
        """
        ...


def outbox_of(engine: Engine) -> Outbox:
    """The engine's streams; an engine without them is refused by name."""
    if engine.outbox is None:
        raise EngineRefused(
            f"{engine.name} has no streams: it cannot join the transaction of your data. Nothing was stored. Put the "
            "outbox into the database that holds your data, and relay its messages to this store."
        )
    return engine.outbox


def needs_transaction(call: str, tx: T | None) -> T:
    """The transaction of a call that means nothing outside of one; refuses None."""
    if tx is None:
        raise EngineRefused(
            f"{call} needs tx=, the transaction that your own writes are in: only then they happen exactly once. "
            "Nothing was stored."
        )
    return tx


FACETS: dict[str, type] = {
    "jobs": Jobs,
    "operator": Operator,
    "groups": Groups,
    "steps": Steps,
    "control": Control,
    "schedules": Schedules,
    "timeline": Timeline,
    "documents": Documents,
    "audit": Audit,
    "outbox": Outbox,
}
"""The facets of an engine by the name of their attribute."""

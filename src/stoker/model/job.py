"""The values that engines take and return: drafts, claims, settlements, notes and jobs.

They go in and out in lists. Instants and spans are integer microseconds
by the store's clock; payloads and results are JSON bytes that no engine looks into.
"""

from __future__ import annotations

import binascii
import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, TypeAlias

import msgspec
from msgspec.structs import replace

from stoker.model import ids
from stoker.model.errors import InvalidInput, InvalidName, InvalidPayload, PayloadTooLarge
from stoker.model.ids import JobId
from stoker.model.ids import text as id_text
from stoker.model.limit import Slot
from stoker.model.markers import PREVIOUS, RESULTS
from stoker.model.retry import OFF, Backoff, Curve
from stoker.model.steps import Step, Wakes
from stoker.model.throttle import Cool
from stoker.model.time import LATEST, LONGEST, SECOND, Instant, Span, span
from stoker.model.unique import Unique, check_text, keep_plain, plain

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # checkers know it without its package; only it has defaults before 3.13

    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)

LARGEST_PAYLOAD = 1 << 20
LARGEST_ERROR = 64 << 10
LARGEST_METADATA = 8 << 10
LARGEST_CHAIN = 64 << 10
"""Bytes of the drafts behind a job, as they are stored with it."""

MOST_LINKS = 100
"""Drafts of one chain, the first included."""

LONGEST_HISTORY = 32
LONGEST_LOG = 100
LARGEST_BATCH = 1_000
DEFAULT_ATTEMPTS = 5
DEFAULT_QUEUE = "default"
MOST_ATTEMPTS = 1_000_000
LEASE: Span = 15 * SECOND
"""How long a worker keeps its jobs without renewing its lease, unless its settings change it."""

PRIORITIES = range(-1000, 1001)
FIRST = PRIORITIES[0] - 1
"""The priority of a job that an operator put first: before every other of its queue, and not for callers to give."""

OWN_PRIORITY = "stoker.priority"
"""Metadata key: the priority of a job before an operator put it first; a later requeue and a copy have it again."""

PARENT = "stoker.parent"
"""Metadata key: the job before this one in its chain."""

ORIGINAL = "stoker.original"
"""Metadata key: the dead job that this one is a copy of."""

LINEAGE = "stoker.lineage"
"""Metadata key: the jobs whose sealed values a copy carries, with a proof that the holder of a key made it."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}")
_known_names: set[str] = set()
_KNOWN_LIMIT = 10_000

Isolation: TypeAlias = Literal["process"]


class Status(enum.StrEnum):
    """Where a job is. `scheduled` and `ready` are views of pending by time, not statuses."""

    PENDING = "pending"
    RUNNING = "running"
    RETRYING = "retrying"
    DONE = "done"
    DEAD = "dead"
    CANCELED = "canceled"
    DISCARDED = "discarded"
    RETRIED = "retried"


ACTIVE = frozenset({Status.PENDING, Status.RUNNING, Status.RETRYING})
FINISHED = frozenset(Status) - ACTIVE
LISTED = (FINISHED - {Status.DONE}) | {Status.RETRYING}
"""Statuses that operators look for and few jobs are in: a store lists them apart."""


def check_name(field: str, value: str) -> str:
    """Check a name (kind, queue, stream, budget, lock) and return it as a plain `str`.

    SQL, Redis, URLs and shells all carry it verbatim.
    """
    if not isinstance(value, str) or (value not in _known_names and not _NAME.fullmatch(value)):
        raise InvalidName(field, value, "must be 1-128 of letters, digits, _ . : - and start with a letter, digit or _")
    name = plain(value)
    if len(_known_names) < _KNOWN_LIMIT:
        _known_names.add(name)
    return name


def check_metadata(metadata: dict[str, str]) -> dict[str, str]:
    """Check metadata: a map from text to text, bounded because it travels with the job. Returns it in plain `str`."""
    return check_text_map("metadata", metadata, LARGEST_METADATA)


def check_text_map(field: str, value: dict[str, str], largest: int) -> dict[str, str]:
    """Check a map from text to text that every engine can store, of at most `largest` bytes in all.

    Returns it in plain `str`.
    """
    if not isinstance(value, Mapping):
        raise InvalidInput(field, value, "must map text to text")
    size, simple = 0, True
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str):
            raise InvalidInput(field, {key: item}, "must map text to text")
        simple = simple and type(key) is str and type(item) is str
        for text in (key, item):
            if "\0" in text:
                raise InvalidInput(field, text, "must not contain NUL")
            try:
                size += len(text.encode())
            except UnicodeEncodeError as error:
                raise InvalidInput(field, text, "must not contain lone surrogates") from error
    if size > largest:
        raise InvalidInput(field, f"{size} bytes", f"must be at most {largest} bytes in all")
    return value if simple else {plain(key): plain(item) for key, item in value.items()}


class Options(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How a job is run and kept. No engine searches these, so they are stored as one value.

    `expires` counts from the enqueue: not started by then, the job is canceled. `keep` counts from success: None
    leaves it to the queue, 0 deletes the job on success. `then` are the drafts that the job's success stores;
    `group` is the group it is a member of. `limit` says how many jobs of its key run at once. `untold`: it was enqueued
    in a transaction of the user's, whose end Stoker does not see, so its first claim puts the enqueue on the timeline.
    `previous` and `results` are the places in the payload where a marker stands (`markers`). `awaited`: it is a member
    of a group with callbacks, which may read its result; done, it is kept as long as the group, whatever its `keep`.
    `label` is what its task wrote on it for people.
    """

    backoff: Backoff | None = None
    timeout: Span | None = None
    expires: Span | None = None
    keep: Span | None = None
    metadata: dict[str, str] | None = None
    isolation: Isolation | None = None
    then: tuple[Draft, ...] = ()
    group: JobId | None = None
    limit: Slot | None = None
    untold: bool = False
    previous: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    awaited: bool = False
    label: str | None = None

    def __post_init__(self) -> None:
        for field in ("timeout", "expires", "keep"):
            value = getattr(self, field)
            if value is not None:
                check_span(field, value)
        if self.timeout == 0:
            raise InvalidInput("timeout", 0, "must be longer than nothing")
        if self.metadata is not None:
            keep_plain(self, metadata=check_metadata(self.metadata))
        if self.isolation not in (None, "process"):
            raise InvalidInput("isolation", self.isolation, "must be 'process' or None")
        if self.group is not None and len(self.group) != 16:
            raise InvalidInput("group", self.group, "must be 16 bytes")


def check_span(field: str, value: Span) -> None:
    """Check a span in microseconds."""
    if not isinstance(value, int) or not 0 <= value <= LONGEST:
        raise InvalidInput(field, value, "must be between zero and ten years, in microseconds")


def check_lease(lease: Span) -> None:
    """Check a worker's lease: up to ten years; zero ends it at once."""
    if isinstance(lease, bool):
        raise InvalidInput("lease", lease, "must be between zero and ten years, in microseconds")
    check_span("lease", lease)


PLAIN = Options()
"""The options of most jobs; engines store nothing for them."""


class Draft(msgspec.Struct, Generic[R_co], frozen=True, gc=False, omit_defaults=True):
    """A job that does not exist yet. Checked when made, so engines never see an impossible one.

    `Draft[R]` tells checkers what the job returns; a plain `Draft` may return anything.
    `job_id` is what engines store; drafts inside stored options call it `id`, the name that users read as text.
    """

    job_id: JobId = msgspec.field(name="id")
    kind: str
    payload: bytes = b"{}"
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    delay: Span = 0
    at: Instant | None = None
    attempts: int = DEFAULT_ATTEMPTS
    unique: Unique | None = None
    tenant: str | None = None
    options: Options = PLAIN

    def __post_init__(self) -> None:
        if not (type(self.kind) is str and self.kind in _known_names):
            keep_plain(self, kind=check_name("kind", self.kind))
        if not (type(self.queue) is str and self.queue in _known_names):
            keep_plain(self, queue=check_name("queue", self.queue))
        if not isinstance(self.job_id, bytes) or len(self.job_id) != 16:
            raise InvalidInput("job_id", self.job_id, "must be 16 bytes")
        if not isinstance(self.payload, bytes):
            raise InvalidPayload("payload", self.payload, "must be JSON bytes")
        if len(self.payload) > LARGEST_PAYLOAD:
            raise PayloadTooLarge("payload", f"{len(self.payload)} bytes", f"must be at most {LARGEST_PAYLOAD} bytes")
        if not isinstance(self.priority, int) or not -1000 <= self.priority <= 1000:
            raise InvalidInput("priority", self.priority, "must be between -1000 and 1000 (lower runs first)")
        check_span("delay", self.delay)
        if not isinstance(self.attempts, int) or not 1 <= self.attempts <= MOST_ATTEMPTS:
            raise InvalidInput("attempts", self.attempts, f"must be 1 to {MOST_ATTEMPTS:,} (the total number of runs)")
        if self.tenant is not None:
            keep_plain(self, tenant=check_text("tenant", self.tenant))
        if self.unique is not None:
            self._check_key(self.unique)
        if self.at is not None and (self.delay or not isinstance(self.at, int) or not 0 <= self.at <= LATEST):
            raise InvalidInput("at", self.at, "must be between 1970 and 2255 and cannot be combined with a delay")

    def _check_key(self, unique: Unique) -> None:
        if unique.is_of_arguments:
            why = "has no key; task.draft(...) and jobs.draft(...) make one of all arguments"
            raise InvalidInput("unique", self.kind, why)
        if unique.longest is not None and self.delay > span(unique.longest):
            why = f"must be at least the delay, {self.delay / SECOND:g} s"
            raise InvalidInput("Unique.longest", unique.longest, why)

    @property
    def id(self) -> str:
        """The id of the job, as text."""
        return id_text(self.job_id)

    def __repr__(self) -> str:
        more = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__[1:])
        return f"Draft(id={self.id!r}, {more})"

    def __or__(self, other: Never) -> Never:
        """Raise, naming what other job systems mean by it; no type is accepted, so checkers refuse it too."""
        why = "is no operator here; write chain(first, second), with PREVIOUS where the second takes the result"
        raise InvalidInput("draft | draft", self.kind, why)

    def then(self, *drafts: Draft) -> Draft[R_co]:
        """A copy whose success stores these drafts, in the same write.

        They run side by side; `chain` puts jobs one after the other. What dies, is canceled or is deleted stores none.
        """
        _check_drafts("then", drafts)
        for draft in drafts:
            check_link(self, draft)
        behind = (*self.options.then, *(after(draft, self.job_id) for draft in drafts))
        linked = replace(self.options, then=behind)
        behind_it = links(linked)
        if (count := 1 + len(behind_it)) > MOST_LINKS:
            raise InvalidInput("then", f"a chain of {count} drafts", f"must be at most {MOST_LINKS} drafts in all")
        check_once("then", [self, *behind_it])
        if (size := len(_pack(behind))) > LARGEST_CHAIN:
            why = f"must be at most {LARGEST_CHAIN} bytes of drafts behind a job; store the data elsewhere"
            raise InvalidInput("then", f"{size} bytes", why)
        return replace(self, options=linked)


Check: TypeAlias = Callable[[str | None, bool], None]


class MarkedDraft(Draft, frozen=True, omit_defaults=True, dict=True, gc=True):
    """A draft with a marker, as its task makes it: it can tell whether a result fits.

    A copy can do so no more, but for that of `then`.
    """

    @classmethod
    def of(cls, draft: Draft, check: Check) -> MarkedDraft:
        """The draft; `check` compares the types of its markers with what a job of some kind returns."""
        marked = cls(*(getattr(draft, name) for name in draft.__struct_fields__))
        marked.__dict__["compare"] = check
        return marked

    def check(self, kind: str | None, *, may_fail: bool = False) -> None:
        """Raise if what a job of this kind returns cannot be the argument that a marker stands for.

        None: of any kind. `may_fail`: a member of a group may have failed.
        """
        compare: Check | None = self.__dict__.get("compare")
        if compare is not None:
            compare(kind, may_fail)

    def then(self, *drafts: Draft) -> Draft:
        """As of every draft; the marker stays to be checked."""
        linked = Draft.then(self, *drafts)
        linked.__dict__.update(self.__dict__)
        return linked


def check_link(parent: Draft, link: Draft) -> None:
    """Refuse a link whose marker the job before it cannot fill."""
    if link.options.results:
        why = "stands for the results of a group's members, and a link has none; use PREVIOUS for the job before it"
        raise InvalidInput(RESULTS.name, link.kind, why)
    if not link.options.previous:
        return
    if parent.options.keep == 0:
        why = f"stands for the result of {parent.kind}, which has keep=0 and so no result; give it another keep="
        raise InvalidInput(PREVIOUS.name, link.kind, why)
    if isinstance(link, MarkedDraft):
        link.check(parent.kind)


def check_markers(draft: Draft) -> None:
    """Refuse markers in a job that has no job before it and is no callback of a group."""
    if draft.options.previous:
        why = "stands for the result of the job before it, and this job has none; use chain(first, draft)"
        raise InvalidInput(PREVIOUS.name, draft.kind, why)
    if draft.options.results:
        why = "stands for the results of a group's members, and this job is no callback of a group; use then="
        raise InvalidInput(RESULTS.name, draft.kind, why)


def after(draft: Draft, parent: JobId) -> Draft:
    """The draft with the id of the job whose success stores it in its metadata."""
    metadata = {**(draft.options.metadata or {}), PARENT: id_text(parent)}
    return replace(draft, options=replace(draft.options, metadata=metadata))


def check_ids(draft: Draft) -> None:
    """Refuse ids that only Stoker derives, on a caller's draft and on those behind it (`ids`)."""
    check_id(draft.job_id)
    _check_links(draft)


def check_id(job: JobId) -> None:
    """Refuse a caller's id that only Stoker derives."""
    if ids.is_derived(job):
        why = "is a UUID of version 8, which Stoker keeps for jobs of schedules; use version 7, or leave the id out"
        raise InvalidInput("id", id_text(job), why)


def _check_links(draft: Draft) -> None:
    for n, link in enumerate(draft.options.then):
        if link.job_id != ids.link(draft.job_id, n):  # what a schedule runs beside its timetable
            check_id(link.job_id)
        _check_links(link)


def copied(options: Options, original: JobId, lineage: str = "") -> Options:
    """The options of a copy: the metadata name the original, unless they have no room left for it.

    With a `lineage` they have, and say whose sealed values it carries.
    """
    metadata = {**(options.metadata or {}), ORIGINAL: id_text(original)} | ({LINEAGE: lineage} if lineage else {})
    try:
        return replace(options, metadata=metadata)
    except InvalidInput:
        return options


def links(options: Options) -> list[Draft]:
    """All drafts behind a job, each before those behind it."""
    return [link for draft in options.then for link in (draft, *links(draft.options))]


def path_to(options: Options, job: JobId) -> tuple[Draft, ...]:
    """The drafts from the first one behind a job to the given one; empty: that is not behind it."""
    for draft in options.then:
        if draft.job_id == job:
            return (draft,)
        if further := path_to(draft.options, job):
            return (draft, *further)
    return ()


_pack = msgspec.json.Encoder().encode
_unpack = msgspec.json.Decoder(Options).decode


def pack(options: Options) -> bytes | None:
    """Options as engines store them; None for plain ones."""
    return None if options is PLAIN or options == PLAIN else _pack(options)


def unpack(stored: bytes | str | None) -> Options:
    """What `pack` wrote; fields of a newer version are ignored, absent ones take their default."""
    return PLAIN if stored is None else _unpack(stored)


def group_text(group: JobId) -> str:
    """A group's id as packed options hold it."""
    return binascii.b2a_base64(group, newline=False).decode()


_GROUP = re.compile(rb'"group":"([A-Za-z0-9+/]{22}==)"')
_LIMIT = re.compile(rb'"limit":(\{(?:[^{}"]|"(?:[^"\\]|\\.)*"|\{[^{}]*\})*\})')
_read_slot = msgspec.json.Decoder(Slot).decode


def salvaged(stored: object) -> Options:
    """What is left of options that cannot be read: group and limit, so that both still count the job."""
    raw = stored.encode() if isinstance(stored, str) else stored if isinstance(stored, bytes) else b""
    group, limit = _GROUP.search(raw), _LIMIT.search(raw)
    if group is None and limit is None:
        return PLAIN
    slot: Slot | None = None
    if limit is not None:
        with suppress(msgspec.MsgspecError, ValueError):
            slot = _read_slot(limit[1])
    return Options(group=None if group is None else binascii.a2b_base64(group[1]), limit=slot)


def chain(*drafts: Draft) -> Draft:
    """The first draft with the others behind it: each job is stored when the one before it succeeds."""
    _check_drafts("chain", drafts)
    for draft in drafts[:-1]:
        if draft.options.then:
            why = "has jobs behind it already; give all links to one chain(), or use then() for jobs side by side"
            raise InvalidInput("chain", draft.kind, why)
    *before, last = drafts
    for draft in reversed(before):
        last = draft.then(last)
    return last


def _check_drafts(field: str, drafts: tuple[Draft, ...]) -> None:
    if not drafts:
        raise InvalidInput(field, drafts, "must be at least one draft")
    check_drafts(field, drafts)


def check_once(field: str, drafts: Sequence[Draft]) -> None:
    """Refuse a draft that stands there twice: a draft is one job, and the second would be taken for the first."""
    seen = set[JobId]()
    for draft in drafts:
        if draft.job_id in seen:
            raise InvalidInput(field, draft.kind, "has the same draft twice; a draft is one job, so make one for each")
        seen.add(draft.job_id)


def check_drafts(field: str, drafts: Sequence[Draft]) -> None:
    """Check that each of them is a draft."""
    for draft in drafts:
        if not isinstance(draft, Draft):
            raise InvalidInput(field, draft, "must be drafts, such as task.draft(...)")


class Stored(enum.StrEnum):
    """What an insert did with a draft."""

    INSERTED = "inserted"
    EXISTING = "existing"
    REPLACED = "replaced"


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What an insert did with one draft. `id` is the holder's when the key was taken.

    `superseded` is the job that ended dead because the draft took its key.
    """

    id: JobId
    stored: Stored
    superseded: JobId | None = None


class Demand(msgspec.Struct, frozen=True):
    """What a worker can take now: queues in the order they are served, each with its own limit, and a total."""

    worker: str
    queues: tuple[tuple[str, int], ...]
    total: int | None = None


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A job that one worker runs: the record plus the fence (worker, token).

    `ref` is private to the engine, which finds the row by it. `former` and
    `former_at` are set when the claim was reaped from another worker. `metadata` is what earlier runs noted. `before`
    is the status the job had when it was claimed: running for a claim that was reaped or came back as an orphan.
    `fresh`: no worker ever had the job, so nothing of it was started, and no step of it is stored. `rows` are those of
    a job that was suspended, in no order (`steps.brought`); None: they are to be read, if the run asks for any.
    """

    id: JobId
    kind: str
    queue: str
    payload: bytes
    attempt: int
    base: int
    budget: int
    worker: str
    token: int
    claimed_at: Instant
    created_at: Instant
    scheduled_at: Instant
    priority: int = 0
    options: Options = PLAIN
    unique: Unique | None = None
    tenant: str | None = None
    crashes: int = 0
    throttles: int = 0
    last_error: str | None = None
    cancel_requested: bool = False
    metadata: dict[str, str] | None = None
    curve: Curve = OFF
    cool_count: int = 0
    former: str | None = None
    former_at: Instant | None = None
    ref: Any = None
    before: Status = Status.PENDING
    fresh: bool = False
    rows: tuple[Step, ...] | None = None


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """How a claim ends. Applied only while the job runs under exactly this worker and token.

    `after` is counted by the store from its own now; `due` is a scheduled time that the job keeps instead. `refund`
    gives the attempt back, `crash` counts a crash-end, `throttled` raises the diagnostic counter that success clears.
    `error` becomes the last error and one entry of the history. `followups` are inserted in the same write, only if it
    applied, and so are `steps`, rows of the job, and `groups`, the ids of new groups of called jobs.

    With `wakes` it is a suspension: the run only waits for those of `steps` that are open, and the job is due when any
    or all of them are answered, else as `after` or `due` say; if they have their answers already, at once.
    """

    id: JobId
    worker: str
    token: int
    status: Status
    after: Span = 0
    refund: bool = False
    crash: bool = False
    throttled: bool = False
    error: str | None = None
    result: bytes | None = None
    keep: Span | None = None
    cool: Cool | None = None
    metadata: dict[str, str] | None = None
    followups: tuple[Draft, ...] = ()
    ref: Any = None
    due: Instant | None = None
    steps: tuple[Step, ...] = ()
    wakes: Wakes | None = None
    groups: tuple[JobId, ...] = ()

    @property
    def slots(self) -> frozenset[str]:
        """The unique keys of its follow-ups, as engines store them."""
        return frozenset(draft.unique.slot(draft.kind) for draft in self.followups if draft.unique is not None)

    @property
    def plain(self) -> bool:
        """Whether it is a success that stores nothing beside its result; engines settle many of them together."""
        return self.status is Status.DONE and not (
            self.error is not None
            or self.cool is not None
            or self.metadata
            or self.followups
            or self.steps
            or self.refund
            or self.crash
            or self.throttled
        )


class Verdict(enum.StrEnum):
    """What became of a settlement, a note or a save. `repeated`: this very settlement applied before. `canceling`: a
    cancel was requested meanwhile, conclude again. `lost`: the claim is no longer this one; nothing changed. `held`:
    another transaction has locked what the settlement must write; nothing changed, and it is sent again later.
    `answered`: a save would end a wait as failed that was answered meanwhile; nothing changed, read the steps again.
    """

    APPLIED = "applied"
    REPEATED = "repeated"
    CANCELING = "canceling"
    LOST = "lost"
    HELD = "held"
    ANSWERED = "answered"


class Settled(msgspec.Struct, frozen=True):
    """Verdicts in the order of the settlements, and the claims the same step took on demand."""

    verdicts: list[Verdict]
    claims: list[Claim]


class Renewal(msgspec.Struct, frozen=True):
    """The result of a renewal. Pairs are (id, token) as they were held.

    `known` is false when this worker's lease was reaped: its handlers must stop and it takes a new id. `orders` is what
    it was told from afar, as stored (`orders.read`).
    """

    known: bool
    lost: list[tuple[JobId, int]] = []
    canceling: list[tuple[JobId, int]] = []
    orphaned: list[Claim] = []
    orders: bytes | str | None = None


class Note(msgspec.Struct, frozen=True):
    """What a running handler adds to its job: progress in [0, 1], metadata, log lines. Fenced."""

    id: JobId
    worker: str
    token: int
    progress: float | None = None
    metadata: dict[str, str] | None = None
    lines: tuple[str, ...] = ()
    ref: Any = None


def portions(drafts: Sequence[Draft], most_bytes: int | None) -> Iterator[range]:
    """Where to split a long list: portions of `LARGEST_BATCH` drafts and so many bytes of payload at most.

    A draft that is larger than that is a portion of its own.
    """
    start = weight = 0
    for place, draft in enumerate(drafts):
        weight += len(draft.payload)
        if place > start and (place - start == LARGEST_BATCH or (most_bytes is not None and weight > most_bytes)):
            yield range(start, place)
            start, weight = place, len(draft.payload)
    if start < len(drafts):
        yield range(start, len(drafts))


class Failure(msgspec.Struct, frozen=True, gc=False):
    """One entry of a job's error history. `origin` is the number of the worker that ran it (`run_origins`), or 0."""

    at: Instant
    attempt: int
    error: str
    origin: int = 0


def appended(history: tuple[Failure, ...], failure: Failure) -> tuple[Failure, ...]:
    """A history with one more entry; the oldest is dropped beyond `LONGEST_HISTORY`."""
    return (*history, failure)[-LONGEST_HISTORY:]


def noted(metadata: dict[str, str], more: Mapping[str, str] | None) -> dict[str, str]:
    """Metadata after a run noted more; the newest value of a key wins."""
    return {**metadata, **more} if more else metadata


def shown_error(status: Status, error: str | None) -> str | None:
    """The last error of a job in this status: success clears it, the history keeps it."""
    return None if status is Status.DONE else error


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The whole record, as an operator sees it. `cancel_requested_at` is when a running job was first asked to stop.

    `settled` is the status that the last run ended in, or what wakes a job that was suspended; None before the first
    end and while the job runs. It recognises a settlement that is sent twice. `origin` is the number of the worker
    whose run ended the job (`run_origins`), 0 where no run did. `known_as` is the signature of a last error that the
    store has sealed: it is not that of the text.
    """

    id: JobId
    kind: str
    queue: str
    payload: bytes
    priority: int
    budget: int
    created_at: Instant
    scheduled_at: Instant
    status: Status = Status.PENDING
    attempts: int = 0
    base: int = 0
    crashes: int = 0
    throttles: int = 0
    options: Options = PLAIN
    unique: Unique | None = None
    tenant: str | None = None
    worker: str | None = None
    token: int = 0
    started_at: Instant | None = None
    finished_at: Instant | None = None
    expires_at: Instant | None = None
    cancel_requested: bool = False
    cancel_requested_at: Instant | None = None
    last_error: str | None = None
    history: tuple[Failure, ...] = ()
    result: bytes | None = None
    progress: float | None = None
    metadata: dict[str, str] = {}
    log: tuple[str, ...] = ()
    successor: JobId | None = None
    settled: Status | Wakes | None = None
    origin: int = 0
    known_as: str | None = None

    @property
    def suspended(self) -> bool:
        """Is it pending because its last run waits for a time, a signal or called jobs?"""
        return self.status is Status.PENDING and isinstance(self.settled, Wakes)

    def view(self, now: Instant) -> str:
        """The status as lists show it: pending splits by time into `ready` and `scheduled` or, suspended, `waiting`."""
        if self.status is Status.PENDING:
            return "ready" if self.scheduled_at <= now else "waiting" if self.suspended else "scheduled"
        return self.status.value

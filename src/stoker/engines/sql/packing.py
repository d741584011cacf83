"""How the SQL engines pack values into columns: a job's rarer fields, and queues.

A field of a job that cannot be read is reported. A queue has one column for each value, in one order for both
engines; what an app declared last is JSON, because nothing searches it and only the next declaration reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from stoker.engines.sql.exchanges import Row
from stoker.model.control import Pause, Queue, Tuning
from stoker.model.errors import CorruptRecord
from stoker.model.job import Options, Status, salvaged, unpack
from stoker.model.query import Totals
from stoker.model.retry import Curve
from stoker.model.steps import Wakes
from stoker.model.throttle import OPEN, Bucket, Cooldown, Rate
from stoker.model.time import SECOND, span
from stoker.model.unique import TRAITS, Unique

SETTLED: tuple[Status | Wakes, ...] = (*Status, *Wakes)
"""How the last run of a job ended: stores write its place in this list."""

SETTLED_CODES = {settled: code for code, settled in enumerate(SETTLED)}
SUSPENDED = frozenset(SETTLED_CODES[wakes] for wakes in Wakes)
"""How a suspended job was settled."""
_TRAITS = {traits: code for code, traits in enumerate(TRAITS)}
_WAYS = 256
"""The traits of a key are one number: its way, and so many times the microseconds for which a success keeps it."""


encode = msgspec.json.Encoder().encode
_metadata = msgspec.json.Decoder(dict[str, str]).decode
_lines = msgspec.json.Decoder(tuple[str, ...]).decode
_tuning = msgspec.json.Decoder(Tuning).decode
_limits = msgspec.json.Decoder(tuple[tuple[str, int], ...]).decode


def pack_unique(unique: Unique | None) -> tuple[str | None, int | None]:
    """A key and its traits as two columns."""
    if unique is None:
        return None, None
    traits = _TRAITS[unique.scope, unique.mode, unique.hold]
    return unique.key, traits if unique.for_ is None else span(unique.for_) * _WAYS + traits


def read_unique(key: str | None, traits: int | None) -> Unique | None:
    """What `pack_unique` wrote."""
    if key is None:
        return None
    try:
        held, place = divmod(traits or 0, _WAYS)
        return Unique(key, *TRAITS[place], for_=held / SECOND if held else None)
    except (IndexError, TypeError, ValueError) as error:
        raise CorruptRecord(f"a unique key cannot be read: {error}") from error


def read_options(stored: bytes | str | None) -> Options:
    """What `job.pack` wrote."""
    try:
        return unpack(stored)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise CorruptRecord(f"the options cannot be read: {error}") from error


def read_metadata(stored: bytes | str | None) -> dict[str, str] | None:
    """What runs noted; None for nothing."""
    try:
        return None if stored is None else _metadata(stored)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise CorruptRecord(f"the metadata cannot be read: {error}") from error


def read_log(stored: bytes | str | None) -> tuple[str, ...]:
    """The lines a run wrote."""
    try:
        return () if stored is None else _lines(stored)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise CorruptRecord(f"the log cannot be read: {error}") from error


class Unpacked(NamedTuple):
    """The packed columns of a record; `corrupt` names the last one that cannot be read.

    `unreadable` names it if it was a part of the draft: no job can be made of what is left.
    """

    options: Options
    unique: Unique | None
    metadata: dict[str, str]
    log: tuple[str, ...]
    corrupt: str | None
    unreadable: str | None


def unpacked(values: Mapping[str, Any]) -> Unpacked:
    """Unpack columns; one that cannot be read counts as empty."""
    unique, metadata = None, None
    log: tuple[str, ...] = ()
    corrupt: str | None = None
    try:
        options = read_options(values["options"])
    except CorruptRecord as error:
        options, corrupt = salvaged(values["options"]), str(error)
    try:
        unique = read_unique(values["ukey"], values["utraits"])
    except CorruptRecord as error:
        corrupt = str(error)
    unreadable = corrupt
    try:
        metadata = read_metadata(values["metadata"])
    except CorruptRecord as error:
        corrupt = str(error)
    try:
        log = read_log(values["log"])
    except CorruptRecord as error:
        corrupt = str(error)
    return Unpacked(options, unique, metadata or {}, log, corrupt, unreadable)


def totals(sums: Mapping[str, list[int]], troubles: Mapping[str, str]) -> dict[str, Totals]:
    """The five totals of each kind that has any, in the order in which engines count them."""
    return {
        kind: Totals(
            enqueued=enqueued,
            completed=completed,
            retried=retried,
            failed=failed,
            canceled=canceled,
            last_error=troubles.get(kind),
        )
        for kind, (enqueued, completed, retried, failed, canceled) in sorted(sums.items())
        if any((enqueued, completed, retried, failed, canceled))
    }


def legible(text: str) -> str:
    """Text as every database stores it: what a handler wrote must never keep its run from ending."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


# --- queues -----------------------------------------------------------------------------------------------------

NO_BUCKET = (None,) * 5


def pack_queue(queue: Queue) -> tuple[Any, ...]:
    """The columns of a queue: name, pause, workers, bucket, retention, curve, cool-down, declaration, turns."""
    pause, curve, cool = queue.pause, queue.curve, queue.cooldown
    return (
        queue.name,
        pause is not None,
        *((None, None, None) if pause is None else (pause.until, pause.reason, pause.by)),
        queue.workers,
        *(NO_BUCKET if queue.bucket is None else pack_bucket(queue.bucket)),
        queue.keep_done,
        queue.keep_dead,
        curve.on,
        curve.base,
        curve.max,
        cool.until,
        cool.count,
        None if queue.declared is None else encode(queue.declared).decode(),
        queue.fair,
        encode(queue.limits).decode() if queue.limits else None,
    )


def read_queue(row: Row) -> Queue:
    """What `pack_queue` wrote."""
    (
        name, paused, until, reason, by, workers, n, per, burst, tokens, refilled,
        keep_done, keep_dead, on, base, top, cool_until, count, declared, fair, limits,
    ) = row  # fmt: skip
    return Queue(
        name=name,
        pause=Pause(until, reason, by) if paused else None,
        workers=workers,
        bucket=read_bucket(n, per, burst, tokens, refilled),
        keep_done=keep_done,
        keep_dead=keep_dead,
        curve=Curve(bool(on), base, top),
        cooldown=OPEN if cool_until is None and not count else Cooldown(cool_until, count),
        declared=_tuning(declared) if declared is not None and is_declaration(declared) else None,
        fair=bool(fair),
        limits=() if limits is None else _limits(limits),
    )


def pack_bucket(bucket: Bucket) -> tuple[float, float, float, float, int]:
    """The columns of a bucket: n, per, burst, tokens, refilled."""
    return *bucket.rate.numbers, bucket.tokens, bucket.refilled_at


def read_bucket(n: float | None, per: float, burst: float, tokens: float, refilled: int) -> Bucket | None:
    """What `pack_bucket` wrote; None: the queue has no rate."""
    return None if n is None else Bucket(Rate(n, per, burst), tokens, refilled)


def is_declaration(stored: str | None) -> bool:
    """Can be read what an app declared about a queue? What cannot counts as not declared."""
    return _fits(_tuning, stored)


def _fits(decode: Callable[[str], object], stored: str | None) -> bool:
    try:
        return stored is None or decode(stored) is not None
    except (msgspec.MsgspecError, ValueError, TypeError):
        return False

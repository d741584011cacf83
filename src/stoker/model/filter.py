"""The operator's filter as text: `is:dead queue:mail kind:send* since:2h "connection refused"`.

One grammar serves the command line, a search field and a URL. A `Filter` is the text as a value: `parse(str(filter))`
gives it back. `query` turns it into the `Query` that engines understand, with the names that are known now. A word that
means nothing raises `InvalidFilter`, and a name that means nothing matches no job, so that a typing error never selects
more jobs than were meant.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Final, Self

import msgspec

from stoker.model import ids
from stoker.model.errors import InvalidInput, cut, nearest
from stoker.model.job import ACTIVE, FINISHED, Job, Status
from stoker.model.names import Names, hint, listed
from stoker.model.query import ORDERS, WAITING, Due, Order, Query
from stoker.model.redact import MASK
from stoker.model.same_error import fingerprint, is_fingerprint, signature_of
from stoker.model.time import DAY, HOUR, MINUTE, SECOND, Instant, Span, instant

VIEWS: Final[dict[str, frozenset[Status]]] = {
    **{status.value: frozenset({status}) for status in Status},
    "ready": frozenset({Status.PENDING}),
    "scheduled": frozenset({Status.PENDING}),
    "waiting": frozenset({Status.PENDING}),
    "active": ACTIVE,
    "finished": FINISHED,
}
"""What stands behind `is:`, and the statuses it means."""

NO_STATUS: Final[frozenset[Status]] = frozenset()
FAILED: Final = frozenset({Status.DEAD, Status.RETRYING})
RUNS: Final = frozenset({Status.RUNNING})
"""The statuses that `same_error:` means where a filter says nothing of statuses."""

ELSEWHERE: Final = {"failed": "dead"}
"""What other systems say for a view, and the view that it is here."""

_ORDERS: Final[dict[str, Order]] = {order: order for order in ORDERS}
_ONLY: Final = {"finished": (FINISHED, "finished"), "due": (WAITING, "waiting")}
"""Orders that only some jobs have."""

DUE: Final[dict[str, Due]] = {"ready": "now", "scheduled": "later", "waiting": "waiting"}
LISTS = ("is", "queue", "kind")
SINGLES = (
    "tenant",
    "key",
    "group",
    "meta",
    "since",
    "until",
    "finished",
    "attempts",
    "worker",
    "payload",
    "error",
    "same_error",
    "order",
    "id",
)
WORDS = (*LISTS, *SINGLES)

_TERM = re.compile(r'(-)?([A-Za-z_]+):|"((?:[^"\\]|\\.)*)"|(\S+)')
_VALUE = re.compile(r'"((?:[^"\\]|\\.)*)"|([^\s,"]+)')
_QUOTED_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"=(.*)', re.DOTALL)
_AGO = re.compile(r"(\d{1,9})(s|m|h|d|w)")
_ATTEMPTS = re.compile(r"(>=|<=|>|<|=)?(\d{1,6})")
_UNITS: dict[str, Span] = {"s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}


class InvalidFilter(InvalidInput):
    """A filter that cannot be read or names nothing; the message says what is known."""

    aftermath = "Nothing was done."


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs are meant, as written. Lists mean "any of"; names beside `but_` are left out.

    `text` is looked for in payloads and errors, `payload` and `error` in one of them, without case. `since` and `until`
    bound the time of enqueueing, `finished` the end of a job, from a moment or between two (`2h`, `3d..1d`). Moments
    stay as written (`2h`, `today`, `2026-11-16T14:00`): a filter that is saved goes on meaning "the last two hours".
    `attempts` is a number or a bound (`3`, `>=3`), `group` the id of a group, `meta` an entry of the metadata
    (`customer=42`). `worker` is the id of the worker that runs a job, or how it begins; without statuses running jobs
    are meant. `same_error` is the id of a job that failed in the same way, or the fingerprint of its error; without
    statuses it means the jobs whose failure is still open, those that are dead or wait for their next attempt.
    """

    views: tuple[str, ...] = ()
    but_views: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    but_queues: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    but_kinds: tuple[str, ...] = ()
    tenant: str | None = None
    key: str | None = None
    group: str | None = None
    meta: str | None = None
    since: str | None = None
    until: str | None = None
    finished: str | None = None
    attempts: str | None = None
    worker: str | None = None
    payload: str | None = None
    error: str | None = None
    same_error: str | None = None
    order: str | None = None
    id: str | None = None
    text: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a filter; the empty text means every job."""
        return msgspec.convert(_terms(text), cls)

    def __str__(self) -> str:
        terms = [
            _term(name, values)
            for name, values in (
                ("is", self.views),
                ("-is", self.but_views),
                ("queue", self.queues),
                ("-queue", self.but_queues),
                ("kind", self.kinds),
                ("-kind", self.but_kinds),
                *((name, _one(getattr(self, name))) for name in SINGLES),
            )
            if values
        ]
        if self.text is not None:
            terms.append(_quoted(self.text))
        return " ".join(terms)

    @property
    def has_names(self) -> bool:
        """Does it name queues or kinds, with which those that have jobs must be compared?"""
        return bool(self.queues or self.but_queues or self.kinds or self.but_kinds)

    @property
    def has_texts(self) -> bool:
        """Does it look for texts in payloads or errors?"""
        return any(one is not None for one in (self.text, self.payload, self.error))

    @property
    def without_payload(self) -> Filter:
        """The same, with what is looked for in payloads masked, for others to read."""
        return self if self.payload is None else msgspec.structs.replace(self, payload=MASK)

    @property
    def entry(self) -> tuple[str, str] | None:
        """The entry of the metadata that is meant: its name and its value."""
        return None if self.meta is None else _entry(self.meta)

    @property
    def has_times(self) -> bool:
        """Does it name times, which may count from now?"""
        return any(one is not None for one in (self.since, self.until, self.finished))

    @property
    def statuses(self) -> frozenset[Status]:
        """The statuses that are meant; empty: all."""
        implied = FAILED if self.same_error is not None else RUNS if self.worker is not None else NO_STATUS
        chosen = NO_STATUS.union(*(VIEWS[view] for view in self.views)) or implied
        if not self.but_views:
            return chosen
        left = (chosen or frozenset(Status)).difference(*(VIEWS[view] for view in self.but_views))
        if not left:
            raise InvalidFilter("filter", str(self), "leaves no status")
        return left

    def spelled(self, known: Names) -> Filter:
        """The same, with `kind:bill` as `kind:*bill*` where kinds contain it and none is called so."""

        def spell(kinds: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(f"*{one}*" if _is_part(one, known.kinds) else one for one in kinds)

        return msgspec.structs.replace(self, kinds=spell(self.kinds), but_kinds=spell(self.but_kinds))

    def unknown(self, known: Names) -> tuple[str, ...]:
        """A sentence about each wanted name that matches nothing which is known; empty: all of them do."""
        kinds = self.spelled(known).kinds
        return tuple(
            f"{word}:{cut(pattern)} matches no {word} that is known. {hint(pattern, names)}"
            for word, patterns, names in (("queue", self.queues, known.queues), ("kind", kinds, known.kinds))
            for pattern in patterns
            if not _matching(pattern, names)
        )

    def is_known(self, known: Names) -> bool:
        """Does each name, wanted or left out, match something which is known, as a whole?"""
        queues, kinds = (*self.queues, *self.but_queues), (*self.kinds, *self.but_kinds)
        return all(_matching(one, known.queues) for one in queues) and all(_matching(one, known.kinds) for one in kinds)

    def admits(self, queue: str, kind: str) -> bool:
        """Does it mean jobs of this queue and kind, as far as names decide?"""
        return all(
            (not wanted or any(_matching(one, (name,)) for one in wanted))
            and not any(_matching(one, (name,)) for one in without)
            for name, wanted, without in ((queue, self.queues, self.but_queues), (kind, self.kinds, self.but_kinds))
        )

    def query(
        self,
        now: Instant,
        known: Names,
        *,
        limit: int = 25,
        cursor: bytes | None = None,
        sample: Job | None = None,
    ) -> Query | None:
        """The question for an engine; None: its names match nothing, so no job is meant.

        A name that is left out and is not `known` is refused: what was to be spared would be taken. `sample` is the job
        whose id `same_error` is, None where there is none.
        """
        first = None if self.since is None else moment_of("since", self.since, now)
        last = None if self.until is None else moment_of("until", self.until, now)
        if first is not None and last is not None and last <= first:
            raise InvalidFilter("until", f"since:{self.since} until:{self.until}", "must be later than since")
        since, until = (None, None) if self.finished is None else window_of("finished", self.finished, now)
        least, most = (None, None) if self.attempts is None else _bounds(self.attempts)
        queues = _chosen("queue", self.queues, self.but_queues, known.queues)
        spelled = self.spelled(known)
        kinds = _chosen("kind", spelled.kinds, spelled.but_kinds, known.kinds)
        statuses = self.statuses
        _check_order(self)
        if NONE in (queues, kinds):
            return None
        error = None if self.same_error is None else _same(self.same_error, sample)
        return Query(
            statuses=statuses,
            queues=queues or frozenset(),
            kinds=kinds or frozenset(),
            tenant=self.tenant,
            key=self.key,
            group=None if self.group is None else ids.parse(self.group),
            meta=self.entry,
            due=next((DUE[view] for view in self.views if view in DUE), None),
            since=first,
            until=last,
            finished_since=since,
            finished_until=until,
            attempts_from=least,
            attempts_to=most,
            worker=self.worker,
            text=self.text,
            payload=self.payload,
            error=self.error,
            same_error=error,
            order=_ORDERS.get(self.order or "", "newest"),
            limit=limit,
            cursor=cursor,
        )


def moment_of(word: str, text: str, now: Instant) -> Instant:
    """A moment as written: so long ago (`90s`, `2h`, `3d`, `1w`), `today`, or an ISO time; UTC without a zone."""
    if text == "today":
        return now - now % DAY
    if (ago := _AGO.fullmatch(text)) is not None:
        return max(0, now - int(ago[1]) * _UNITS[ago[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        why = "must be like 15m, 2h, 3d, today or 2026-11-16T14:00"
        raise InvalidFilter(word, text, why) from None
    return instant(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC), word)


def _same(given: str, sample: Job | None) -> str:
    """The fingerprint of an error: as it was given, or that of a job which failed."""
    if is_fingerprint(given):
        return given
    if sample is None or sample.last_error is None:
        raise InvalidFilter("same_error", given, "names no job that has failed")
    return fingerprint(signature_of(sample))


def _entry(text: str) -> tuple[str, str]:
    """The name and the value in `Filter.meta`; a name with an equals sign stands in quotes there."""
    if (quoted := _QUOTED_NAME.fullmatch(text)) is not None:
        name, equals, value = _unquoted(quoted[1]), "=", quoted[2]
    else:
        name, equals, value = text.partition("=")
    if not name or not equals:
        why = 'must be a name, = and the whole value, as in meta:customer=42 or meta:customer="Ada L."'
        raise InvalidFilter("meta", text, why)
    return name, value


def meta_of(name: str, value: str) -> str:
    """`Filter.meta` for an entry of the metadata."""
    return f"{_quoted(name) if '=' in name or name.startswith(chr(34)) else name}={value}"


def _check_order(given: Filter) -> None:
    """Refuse what no job can be: an order or a window that the statuses do not have."""
    statuses = given.statuses or frozenset(Status)
    if given.finished is not None:
        statuses &= FINISHED
        if not statuses:
            raise InvalidFilter("finished", given.finished, "goes with finished jobs; leave it out, or use is:finished")
    if given.order in _ONLY and not statuses & _ONLY[given.order][0]:
        raise InvalidFilter("order", given.order, f"goes with {_ONLY[given.order][1]} jobs; use order:newest")


def window_of(word: str, text: str, now: Instant) -> tuple[Instant, Instant | None]:
    """A window as written: from a moment until now, or between two moments (`3d..1d`)."""
    first, dots, last = text.partition("..")
    since = moment_of(word, first, now)
    if not dots:
        return since, None
    until = moment_of(word, last, now)
    if until <= since and now:
        raise InvalidFilter(word, text, "ends before it begins")
    return since, until


def _bounds(text: str) -> tuple[int | None, int | None]:
    found = _ATTEMPTS.fullmatch(text)
    if found is None:
        raise InvalidFilter("attempts", text, "must be like 3, >=3 or <5")
    n = int(found[2])
    bounds: dict[str | None, tuple[int | None, int | None]] = {
        ">=": (n, None),
        ">": (n + 1, None),
        "<=": (None, n),
        "<": (None, n - 1),
    }
    return bounds.get(found[1], (n, n))


# --- reading --------------------------------------------------------------------------------------------------------


def _terms(text: str) -> dict[str, object]:
    lists: dict[str, list[str]] = {}
    singles: dict[str, str] = {}
    free: list[str] = []
    alone: str | None = None
    at = 0
    while (at := _past_space(text, at)) < len(text):
        found = _TERM.match(text, at)
        assert found is not None  # the last arm takes any character that is no space
        minus, word, quoted, bare = found.groups()
        at = found.end()
        if word is None:
            alone = None if free else bare
            free.append(bare if quoted is None else _unquoted(quoted))
            continue
        values, at = _values(word, text, at)
        _put(lists, singles, word, values, minus=minus is not None)
    if alone is not None and (id_ := _as_id(alone)) is not None and not lists and not singles:
        return {"id": id_}
    if alone is not None and not lists.keys() & {"views", "but_views"} and (alone in VIEWS or alone in ELSEWHERE):
        _put(lists, singles, "is", [alone], minus=False)
    elif free:
        singles["text"] = " ".join(free)
    return {**{name: tuple(dict.fromkeys(values)) for name, values in lists.items()}, **singles}


def _put(lists: dict[str, list[str]], singles: dict[str, str], word: str, values: list[str], *, minus: bool) -> None:
    if word not in WORDS:
        known = f"{_asked(word, WORDS)}The words are {', '.join(WORDS)}; put other text in quotes"
        raise InvalidFilter("filter", f"{word}:", known)
    if word in SINGLES:
        if minus:
            raise InvalidFilter("filter", f"-{word}:", f"only {listed(LISTS)} can be left out")
        if len(values) > 1 or word in singles:
            raise InvalidFilter("filter", f"{word}:", "takes one value")
        singles[word] = _checked(word, values[0])
        return
    if word == "is":
        values = [ELSEWHERE.get(value, value) for value in values]
        _check_views(lists, values, minus=minus)
    name = {"is": "views", "queue": "queues", "kind": "kinds"}[word]
    lists.setdefault(f"but_{name}" if minus else name, []).extend(values)


def _check_views(lists: dict[str, list[str]], values: list[str], *, minus: bool) -> None:
    for value in values:
        if value not in VIEWS:
            raise InvalidFilter("is", value, f"{_asked(value, VIEWS)}It must be one of {listed(VIEWS)}")
    split = [value for value in values if value in DUE]
    if split and minus:
        raise InvalidFilter("filter", f"-is:{split[0]}", "cannot be left out; use is:pending or the other one")
    together = {*values, *lists.get("views", ())} if not minus else set(lists.get("views", ()))
    if not DUE.keys().isdisjoint(together) and len(together) > 1:
        raise InvalidFilter("is", ",".join(sorted(together)), f"{listed(DUE)} stand alone; use is:pending")


_IDS: Final = {
    "id": "must be a job's id",
    "same_error": "must be a job's id or the name of an error, as in same_error:err_9f1a02c3d4e5",
    "group": "must be a group's id",
}


def _checked(word: str, value: str) -> str:
    if word == "order" and value not in ORDERS:
        raise InvalidFilter("order", value, f"{_asked(value, ORDERS)}It must be one of {', '.join(ORDERS)}")
    if word in {"since", "until"}:
        moment_of(word, value, 0)
    if word == "finished":
        window_of(word, value, 0)
    if word == "attempts":
        _bounds(value)
    if word == "meta":
        _entry(value)
    if word == "same_error" and is_fingerprint(value):
        return value
    if word in {"id", "same_error", "group"}:
        id_ = _as_id(value)
        if id_ is None:
            raise InvalidFilter(word, value, _IDS[word])
        return id_
    return value


def _values(word: str, text: str, at: int) -> tuple[list[str], int]:
    values: list[str] = []
    while (parts := _parts(text, at))[0]:
        found, at = parts
        values.append(_written_entry(found) if word == "meta" else "".join(part for part, _ in found))
        if text[at : at + 1] != ",":
            return values, at
        at += 1
    if text[at : at + 1] == '"':
        raise InvalidFilter("filter", f"{word}:{text[at:]}", "has a quote that is not closed")
    raise InvalidFilter("filter", f"{word}:", "needs a value right behind the colon, and behind each comma")


def _parts(text: str, at: int) -> tuple[list[tuple[str, bool]], int]:
    """The parts of one value, in a row and each with whether it is in quotes, and where the value ends."""
    parts: list[tuple[str, bool]] = []
    while (found := _VALUE.match(text, at)) is not None:
        quoted, bare = found.groups()
        parts.append((bare, False) if quoted is None else (_unquoted(quoted), True))
        at = found.end()
    return parts, at


def _written_entry(parts: Sequence[tuple[str, bool]]) -> str:
    """`Filter.meta` as written: `customer=42`, `customer="4 2"`, `"a=b"=5`, or the whole in quotes."""
    before = ""
    for n, (part, quoted) in enumerate(parts):
        name, equals, value = part.partition("=")
        if equals and not quoted:
            return meta_of(before + name, value + "".join(rest for rest, _ in parts[n + 1 :]))
        before += part
    return before


def _past_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _as_id(text: str) -> str | None:
    try:
        return ids.text(ids.parse(text))
    except InvalidInput:
        return None


# --- writing --------------------------------------------------------------------------------------------------------


def _term(word: str, values: Iterable[str]) -> str:
    return f"{word}:{','.join(as_value(value) for value in values)}"


def _one(value: str | None) -> tuple[str, ...]:
    return () if value is None else (value,)


def as_value(value: str) -> str:
    """A name as a value of a filter: in quotes where it needs them."""
    return value if _VALUE.fullmatch(value) and '"' not in value else _quoted(value)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)


# --- names ----------------------------------------------------------------------------------------------------------


NONE: Final[frozenset[str]] = frozenset()
"""Names were asked for, and none of them is there."""


def _chosen(word: str, wanted: Sequence[str], without: Sequence[str], known: Iterable[str]) -> frozenset[str] | None:
    """The names that are meant, which may be none; None: all of them, because nothing is said of names."""
    if not wanted and not without:
        return None
    known = frozenset(known)
    chosen = NONE.union(*(_matching(pattern, known) for pattern in wanted)) if wanted else known
    for pattern in without:
        spared = _matching(pattern, known)
        if not spared:
            why = f"matches no {word} that is known, so nothing can be left out. {hint(pattern, known)}"
            raise InvalidFilter("filter", f"-{word}:{pattern}", why.removesuffix("."))
        chosen -= spared
    return chosen


def _is_part(name: str, known: Collection[str]) -> bool:
    """Is it a part of known names, and none of them?"""
    return name not in known and "*" not in name and name != "" and any(name in one for one in known)


def _matching(pattern: str, known: Iterable[str]) -> frozenset[str]:
    """The names that a pattern matches, in which only `*` means anything but itself."""
    plain = pattern.replace("[", "[[]").replace("?", "[?]")
    return frozenset(name for name in known if fnmatchcase(name, plain))


def _asked(word: str, known: Iterable[str]) -> str:
    """A question after the nearest word, as another sentence goes on behind it."""
    near = nearest(word, known)
    return f"{near} " if near else ""

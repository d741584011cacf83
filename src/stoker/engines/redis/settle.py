"""Settles claims, and claims new jobs in the same step.

A whole batch is one script call: the script checks the fence of every settlement before it writes. Follow-ups, rows of
steps and notes to be merged need the model's rules: a unit of work is computed here and attached to its settlement.
When one of its checks fails, the script does not apply the settlement, and the engine computes and sends it again.
"""

from __future__ import annotations

import functools
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from stoker.engines.base import Transaction
from stoker.engines.call_times import timed
from stoker.engines.redis import claim as claiming
from stoker.engines.redis import record_format, step_rows
from stoker.engines.redis.claim import Ref
from stoker.engines.redis.cluster import followups
from stoker.engines.redis.connection import LARGEST_CALL
from stoker.engines.redis.insert import FAIR
from stoker.engines.redis.keys import GROUPS, Keys, Shard
from stoker.engines.redis.record_format import CHARS
from stoker.engines.redis.scripts import KEEP_DONE, script
from stoker.engines.redis.store import MOST_TRIES, Store, refuse
from stoker.engines.redis.stored_job import Notes, salvaged, write_notes
from stoker.engines.redis.subqueues import slot_text
from stoker.engines.redis.unit_of_work import Unit
from stoker.engines.shared import one_by_one
from stoker.engines.shared.facets import Facet
from stoker.engines.shared.steps import suspend
from stoker.engines.shared.unit_of_work import Wanted
from stoker.model.errors import EngineBusy
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Note, Settled, Settlement, Status, Verdict, noted
from stoker.model.lifecycle import KEEP_DEAD, check_settlements, deletes
from stoker.model.steps import Save, Wakes
from stoker.model.subqueues import tenant_line
from stoker.model.throttle import DECAY_GRACE, MOST_EVENTS
from stoker.model.unique import Kept

_SETTLE = {with_subqueues: script("settle", with_subqueues=with_subqueues) for with_subqueues in (False, True)}
_TRAITS = struct.Struct(">cHHQ")
_REFUND, _CRASH, _THROTTLED, _ERROR, _DELETE, _RESULT, _KEY, _COOL, _ATTACHED, _KEEP, _DUE, _GROUP, _SUBQUEUE = (
    1 << n for n in range(13)
)
_WAKES = {None: 0, Wakes.ANY: 1 << 13, Wakes.ALL: 1 << 14}
_NEW_ROWS = 1 << 15
LIMITED_AT_ONCE = 200
"""How many settlements of jobs with limits one script applies: each may give back a slot of another key."""

_VERDICTS = {ord("a"): Verdict.APPLIED, ord("r"): Verdict.REPEATED, ord("c"): Verdict.CANCELING, ord("l"): Verdict.LOST}
_WAITING = (Status.PENDING, Status.RETRYING)
_APPLIED = Verdict.APPLIED


class Settler(Facet[Store]):
    """Ends claims, each for itself, and wakes callers that wait for the jobs."""

    @timed(write=True)
    async def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        tx: Transaction | None = None,
        demand: Demand | None = None,
    ) -> Settled:
        refuse(tx)
        check_settlements(settlements)
        store = self._store
        store.connection.inside()
        refs = await _refs(store, settlements)
        verdicts: list[Verdict] = [Verdict.LOST] * len(settlements)
        taken: list[Claim] | None = None
        runs = _light(_runs(store, settlements, refs), settlements, refs)
        for number, (shard, places) in enumerate(runs):
            wanted = demand if number == len(runs) - 1 and not store.connection.cluster else None
            call = Call(store, shard, [(settlements[place], refs[place]) for place in places], wanted)
            for place, verdict in zip(places, await call.run(), strict=True):
                verdicts[place] = verdict
            taken = call.claims if wanted is not None else None
        if demand is not None and taken is None:
            taken = await claiming.claim_each(store, demand)
        store.notifier.ends.settled(settlements, verdicts)
        return Settled(verdicts, taken or [])


async def _refs(store: Store, settlements: Sequence[Settlement]) -> list[Ref | None]:
    """The refs of the claims; read for settlements without one. None: there is no such job."""
    refs: list[Ref | None] = [one.ref if type(one.ref) is tuple else None for one in settlements]
    missing = [place for place, ref in enumerate(refs) if ref is None]
    if missing:
        found = await read_refs(store, [settlements[place] for place in missing])
        for place, ref in zip(missing, found, strict=True):
            refs[place] = ref
    return refs


async def read_refs(store: Store, fenced: Sequence[Settlement | Note | Save]) -> list[Ref | None]:
    """Refs as they are stored now."""
    refs: dict[bytes, Ref] = {}
    for shard in await store.shards():
        _, found = await store.read(shard, [one.id for one in fenced if one.id not in refs], details=True)
        for job in found:
            if job is not None:
                refs[job.record.id] = claiming.ref_of(job)
    return [refs.get(one.id) for one in fenced]


def _runs(store: Store, settlements: Sequence[Settlement], refs: Sequence[Ref | None]) -> list[tuple[Shard, list[int]]]:
    """Settlements that may share a call, in order: one shard, each job once, follow-ups by themselves."""
    plain = not store.connection.cluster and None not in refs and not any(_calls(one) for one in settlements)
    if plain and len({one.id for one in settlements}) == len(settlements) > 0:
        return [(store.home, list(range(len(settlements))))]
    runs: list[tuple[Shard, list[int]]] = []
    seen: set[bytes] = set()
    apart = True
    for place, (one, ref) in enumerate(zip(settlements, refs, strict=True)):
        if ref is None:
            continue
        shard = store.shard(ref[0])
        if apart or _calls(one) or one.id in seen or runs[-1][0] is not shard:
            runs.append((shard, []))
            seen = set()
        runs[-1][1].append(place)
        seen.add(one.id)
        apart = _calls(one)
    return runs


def _calls(one: Settlement) -> bool:
    """Does it store other jobs?"""
    return bool(one.followups or one.groups)


def _light(
    runs: list[tuple[Shard, list[int]]], settlements: Sequence[Settlement], refs: Sequence[Ref | None]
) -> list[tuple[Shard, list[int]]]:
    """Runs that are not too large for one call: each settlement stands for itself, so they may be split anywhere."""
    weights = [len(one.result or b"") + len(one.error or "") + step_rows.weight(one.steps) for one in settlements]
    if len(settlements) > LIMITED_AT_ONCE and any(ref is not None and ref[6] is not None for ref in refs):
        weights = [max(weight, LARGEST_CALL // LIMITED_AT_ONCE) for weight in weights]
    if sum(weights) <= LARGEST_CALL:
        return runs
    found: list[tuple[Shard, list[int]]] = []
    for shard, places in runs:
        weight = LARGEST_CALL
        for place in places:
            weight += weights[place]
            if weight > LARGEST_CALL:
                found.append((shard, []))
                weight = weights[place]
            found[-1][1].append(place)
    return found


@functools.cache
def _plain_traits(label: int, flags: int = 0) -> bytes:
    return _TRAITS.pack(b"d", flags, label, 0)


def _subqueue(one: Settlement, ref: Ref) -> str:
    """What the script has to know of the subqueue of a job; '' for nothing. Its first character says what it is."""
    limit = ref[6]
    if limit is not None:
        return ("=" if limit.hold == "running" else "!") + limit.subqueue
    return tenant_line(ref[7]) if one.status in _WAITING else ""


class Call:
    """One call of the script, and its repetitions for settlements whose checks failed."""

    def __init__(
        self, store: Store, shard: Shard, given: Sequence[tuple[Settlement, Ref | None]], demand: Demand | None
    ) -> None:
        self._store = store
        self._shard = shard
        self._given = [(one, ref) for one, ref in given if ref is not None]
        self._demand = demand
        self.claims: list[Claim] = []
        self._rows = Unit(store, shard)
        """The rows that the settlements write."""
        self._read_rows = False
        self._at_once: set[JobId] = set()
        """Suspended jobs that have what they wait for."""

    async def run(self) -> list[Verdict]:
        given, demand = self._given, self._demand
        if self._store.connection.cluster:
            await followups.store_followups(self._store, self._shard, given)
        verdicts: dict[int, Verdict] = {}
        places = list(range(len(given)))
        for _ in range(MOST_TRIES):
            letters = await self._send([given[place] for place in places], demand)
            self._read_rows = True
            demand = None
            if places and letters.count(b"a") == len(letters) == len(given):
                return [_APPLIED] * len(given)
            verdicts.update(
                (place, _VERDICTS[char]) for place, char in zip(places, letters, strict=True) if char != ord("?")
            )
            places = [place for place, char in zip(places, letters, strict=True) if char == ord("?")]
            if not places:
                await self._claim_woken()
                return [verdicts[place] for place in range(len(given))]
            fresh = await read_refs(self._store, [given[place][0] for place in places])
            for place, ref in zip(places, fresh, strict=True):
                one, known = given[place]
                self._store.notes.pop((one.id, one.token), None)
                given[place] = (one, ref or known)
        raise EngineBusy("others changed the same jobs a hundred times in a row; the claims stand, settle them again")

    async def _send(self, given: Sequence[tuple[Settlement, Ref]], demand: Demand | None) -> bytes:
        labels: dict[tuple[str, str], int] = {}
        queues: dict[str, int] = {}
        head: list[Any] = []
        last: Ref | None = None
        for _, ref in given:
            if ref is last:
                continue
            last = ref
            if ref[:2] not in labels:
                labels[ref[0], ref[1]] = len(labels) + 1
                head += (queues.setdefault(ref[0], len(queues) + 1), ref[0], ref[1])
        wanted = [] if demand is None else [(name, n) for name, n in demand.queues if n > 0]
        for name, _ in wanted:
            queues.setdefault(name, len(queues) + 1)
        with_subqueues = self._with_subqueues(given, queues)
        await self._load_rows(given)
        keys, body, units = await self._encoded(given, labels, list(queues), with_subqueues=with_subqueues)
        if not with_subqueues and any(unit.uses_subqueues for unit in units):
            with_subqueues = True
            keys, body, units = await self._encoded(given, labels, list(queues), with_subqueues=with_subqueues)
        workers = dict.fromkeys(one.worker for one, _ in given)
        holders = [part for worker in workers for part in (worker, keys.number(self._shard.held(worker)))]
        args = [self._store.arg_now(), 0, KEEP_DONE, KEEP_DEAD, DECAY_GRACE, MOST_EVENTS, len(labels), *head]
        args += (len(workers), *holders, *body)
        if demand is not None and wanted:
            args[1] = len(args) + 1
            args += claiming.arguments(self._shard, keys, demand.worker, claiming.limit(demand), wanted)
        instant, letters, *rest = await self._store.connection.run(_SETTLE[with_subqueues], keys.names, args)
        if letters == FAIR:
            self._store.with_subqueues.update(ref[0] for one, ref in given if one.status in _WAITING)
            return await self._send(given, demand)
        found, closed, freed = (*rest, [], [])[:3]
        now = self._store.seen(instant)
        if demand is not None:
            worker, names = demand.worker, list(queues)
            self.claims = await claiming.taken_over(self._store, self._shard, now, worker, names, found)
            more = claiming.unasked(self._store, names, wanted, found, self.claims)
            left = claiming.limit(demand) - len(self.claims)
            if more is not None:
                self.claims += await claiming.claim_in(self._store, self._shard, worker, left, more)
        for unit in units:
            await self._store.wake_for(unit)
        if self._store.connection.cluster:
            await self._store.wake(
                ref[0]
                for (one, ref), char in zip(given, letters, strict=True)
                if char == ord("a") and one.status in _WAITING and self._is_due(one)
            )
            await self._store.wake(list(queues)[number - 1] for number in freed)
        if closed:
            await self._store.close_groups(self._shard, closed)
        return bytes(letters)

    async def _claim_woken(self) -> None:
        """Claim what the demand has room for, if jobs became due at once after the call that claimed."""
        demand = self._demand
        if demand is None or not self._at_once:
            return
        got = Counter(claim.queue for claim in self.claims)
        queues = [(name, n - got[name]) for name, n in demand.queues if n > got[name]]
        left = claiming.limit(demand) - len(self.claims)
        self.claims += await claiming.claim_in(self._store, self._shard, demand.worker, left, queues)

    def _is_due(self, one: Settlement) -> bool:
        return one.id in self._at_once if one.wakes is not None and one.due is not None else not one.after

    def _with_subqueues(self, given: Sequence[tuple[Settlement, Ref]], queues: Iterable[str]) -> bool:
        """Is this call about subqueues, as far as it is known?"""
        known = self._store.with_subqueues
        return (
            not known.isdisjoint(queues)
            or any(ref[6] is not None for _, ref in given)
            or any(
                draft.options.limit is not None or draft.queue in known for one, _ in given for draft in one.followups
            )
        )

    async def _encoded(
        self,
        given: Sequence[tuple[Settlement, Ref]],
        labels: dict[tuple[str, str], int],
        queues: Sequence[str],
        *,
        with_subqueues: bool,
    ) -> tuple[Keys, list[Any], list[Unit]]:
        """The keys, the settlements as the script reads them, and the units of work attached to them."""
        keys = Keys(self._shard.all_keys(queues, with_subqueues=with_subqueues), with_subqueues=with_subqueues)
        units: list[Unit] = []
        return keys, await self._body(given, labels, keys, units, with_subqueues=with_subqueues), units

    async def _body(
        self,
        given: Sequence[tuple[Settlement, Ref]],
        labels: dict[tuple[str, str], int],
        keys: Keys,
        units: list[Unit],
        *,
        with_subqueues: bool,
    ) -> list[Any]:
        """Settlements as the script reads them; plain successes side by side become one."""
        body: list[Any] = []
        fences: dict[tuple[str, int], bytes] = {}
        alike: list[JobId] = []
        last: tuple[bytes, int, JobId | None, str] | None = None
        for one, ref in given:
            fence = fences.get((one.worker, one.token))
            if fence is None:
                fence = fences[one.worker, one.token] = record_format.fence(one.worker, one.token)
            label = labels[ref[0], ref[1]]
            if one.plain and ref[2] is None and one.keep is None and one.result is None:
                group, subqueue = ref[5], "" if ref[6] is None else _subqueue(one, ref)
                if last != (fence, label, group, subqueue):
                    alike, last = [], (fence, label, group, subqueue)
                    flags, more = 0, list[Any]()
                    if subqueue:
                        flags, more = _SUBQUEUE, [subqueue]
                    if group is not None:
                        flags |= _GROUP
                        more += self._group(group, keys)
                    body += (alike, fence, _plain_traits(label, flags), *more)
                alike.append(one.id)
            else:
                last = None
                traits = await self._arguments(one, ref, label, keys, units, with_subqueues=with_subqueues)
                body += (one.id, fence, *traits)
        return [b"".join(part) if type(part) is list else part for part in body]

    async def _arguments(
        self, one: Settlement, ref: Ref, label: int, keys: Keys, units: list[Unit], *, with_subqueues: bool
    ) -> list[Any]:
        """One settlement as the script reads it, behind its id and fence."""
        status = one.status
        with_rows = bool(one.steps) and not deletes(one)
        if with_rows:
            one = self._with_rows(one)
        flags = _WAKES[one.wakes] | _REFUND * one.refund | _CRASH * one.crash | _THROTTLED * one.throttled
        span = one.after if status in _WAITING else 0
        if one.due is not None and status in _WAITING:
            flags, span = flags | _DUE, one.due
        more: list[Any] = []
        if with_subqueues and (subqueue := _subqueue(one, ref)):
            flags |= _SUBQUEUE
            more += (subqueue, slot_text(ref[6])) if status in _WAITING else (subqueue,)
        if ref[5] is not None:
            flags |= _GROUP
            more += self._group(ref[5], keys)
        if one.error is not None:
            flags |= _ERROR
            more.append(one.error)
        if status is Status.DONE:
            if deletes(one):
                flags |= _DELETE
            elif one.keep is not None:
                flags, span = flags | _KEEP, one.keep
            if one.result is not None and not flags & _DELETE:
                flags |= _RESULT
                more.append(one.result)
        if ref[2] is not None:
            flags |= _KEY
            more += (ref[2], ref[3])
        if one.cool is not None:
            flags |= _COOL
            more += (one.cool.seen, "" if one.cool.delay is None else one.cool.delay)
        keeps = status is Status.DONE and ref[8] is not None
        rows = self._rows.new_rows(one.id) if with_rows else []
        if rows is None or _calls(one) or keeps or (one.metadata and not flags & _DELETE):
            unit = await self._attached(one, ref, deleted=bool(flags & _DELETE))
            if rows is None:
                unit.adopt_rows(self._rows, one.id)
            units.append(unit)
            flags |= _ATTACHED
            more += unit.encoded(keys)
        if rows:
            flags |= _NEW_ROWS
            more += (len(rows) // 2, *rows)
        return [_TRAITS.pack(CHARS[status], flags, label, span), *more]

    def _group(self, group: JobId, keys: Keys) -> tuple[int, int]:
        return keys.number(self._shard.group(group)), keys.number(self._shard.key(GROUPS))

    async def _load_rows(self, given: Sequence[tuple[Settlement, Ref]]) -> None:
        """Read the rows that the settlements meet, all in one call; at the first try they are taken to be new.

        Mostly they are, and the script checks it. It sets the time of rows that have none.
        """
        wanted = Wanted(steps=frozenset((one.id, step.name) for one, _ in given for step in one.steps))
        if not wanted.steps:
            return
        self._rows, self._at_once = Unit(self._store, self._shard), set()
        read = await step_rows.read(self._store, self._shard, wanted) if self._read_rows else step_rows.NOTHING
        self._rows.add_rows(wanted, read)

    def _with_rows(self, one: Settlement) -> Settlement:
        """Decide about the rows of a settlement, which may be due at once by what they meet."""
        self._rows.changed_steps.pop(one.id, None)
        after = suspend(self._rows, one)
        if after is not one:
            self._at_once.add(one.id)
        return after

    async def _attached(self, one: Settlement, ref: Ref, *, deleted: bool) -> Unit:
        """Follow-ups and merged notes, to be written if nothing changes meanwhile."""
        unit = Unit(self._store, self._shard)
        if one.metadata and not deleted:
            known = self._store.notes.get((one.id, one.token), ref[4])
            before = salvaged(known)
            after = Notes(before.progress, noted(before.metadata, one.metadata), before.log, before.asked)
            unit.expect_hash(self._shard.key("notes"), one.id, known)
            unit.write("HSET", self._shard.key("notes"), one.id, write_notes(after))
        until = ref[8] if one.status is Status.DONE else None
        if ref[2] is not None and one.status not in _WAITING and (_calls(one) or until is not None):
            await unit.load(Wanted(slots=frozenset({ref[2]})))
            unit.release(ref[2], one.id)
            if until is not None:
                unit.keep(ref[2], Kept(one.id, until))
        if _calls(one):
            here = [draft for draft in one.followups if self._store.shard(draft.queue) is self._shard]
            drafts = await followups.allowed(self._store, here, one.id)
            new = followups.groups_of(self._store, self._shard, ref[0], one.groups, one.followups)
            await unit.load(one_by_one.wanted_by_drafts(drafts)._replace(groups=frozenset(new)))
            one_by_one.call_jobs(unit, one.id, new, drafts)
        return unit

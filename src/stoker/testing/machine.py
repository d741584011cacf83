"""Two engines in lock-step: random lives of jobs, driven through an engine and through the memory engine at once.

Both get the same ids, the same clock and the same calls; every receipt, claim, verdict, renewal and tally must be the
same, and after every step every record and every count. A few laws that must hold whatever the model decides are
checked on the way (`machine_laws.py`).

    machine = engine_machine(lambda clock: MyEngine(fresh_place(), clock=clock))
    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=40))
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from stoker.admin import documents
from stoker.engines.base import LEASE, ORPHANED_AFTER, Engine, Feature, outbox_of
from stoker.model import archive
from stoker.model.actions import action_of
from stoker.model.audit import AuditQuery, By, pack
from stoker.model.budgets import Rates, Spend
from stoker.model.control import SETTINGS, Tuning
from stoker.model.errors import Duplicate, GroupClosed, InvalidInput, LostClaim, NotFound
from stoker.model.event_blocks import TICK
from stoker.model.events import Event, Latency, Window, of_alter, of_claims, of_insert, of_settlements
from stoker.model.groups import Group, into_group, new_group
from stoker.model.ids import JobId
from stoker.model.job import (
    Claim,
    Demand,
    Draft,
    Job,
    Note,
    Receipt,
    Renewal,
    Settled,
    Settlement,
    Status,
    Stored,
    Verdict,
)
from stoker.model.lifecycle import Rules, conclude
from stoker.model.operations import Operation
from stoker.model.orders import Orders, ordered, read
from stoker.model.outcome import (
    Done,
    Outcome,
    Suspended,
)
from stoker.model.query import (
    Cancel,
    Change,
    Clone,
    Delete,
    Discard,
    Fork,
    Move,
    Place,
    Query,
    Restore,
    Retention,
    Selection,
)
from stoker.model.retry import Curve
from stoker.model.schedule import NO_ID, Action, Edit, Schedule, draft_of, tick
from stoker.model.stats import closed_buckets
from stoker.model.steps import Save, Signal, Step, StepState, Wakes, group_wait
from stoker.model.throttle import Rate
from stoker.model.time import DAY, HOUR, MINUTE, SECOND, Instant
from stoker.model.tokens import AccessToken, Session, digest
from stoker.testing import machine_values as values
from stoker.testing.machine_laws import SLOTS, Laws, MakeMachineEngine, Pair
from stoker.testing.machine_values import QUEUES, START

__all__ = ["LockStep", "MakeMachineEngine", "engine_machine"]

RETENTION = Retention(events=1_000 * DAY)
"""Events stay as long as their jobs, so that starts and ends can be counted."""


def _bare(claim: Claim) -> Claim:
    return msgspec.structs.replace(claim, ref=None)


def _pairs(mine: list[Claim], theirs: list[Claim]) -> list[Pair]:
    """Claims side by side; fails unless they are the same."""
    assert [_bare(claim) for claim in mine] == [_bare(claim) for claim in theirs]
    return list(zip(mine, theirs, strict=True))


def _told(verdicts: list[Verdict]) -> list[Verdict]:
    """Not every store recognises a repeated settlement."""
    return [Verdict.LOST if verdict is Verdict.REPEATED else verdict for verdict in verdicts]


class LockStep(Laws):
    """The lives of jobs. Make a runnable one with `engine_machine`."""

    @initialize(options=st.lists(values.drafts, min_size=3, max_size=6))
    def begin(self, options: list[dict[str, Any]]) -> None:
        """Never an empty store: most of what is worth seeing needs a few jobs."""
        self.both(lambda engine: engine.open())
        for worker in self.workers:
            self.enlist(worker)
        self.insert([{**option, "delay": 0} for option in options])

    def enlist(self, worker: str) -> None:
        assert self.same(lambda engine: engine.jobs.renew(worker, [], first=True)).known

    def teardown(self) -> None:
        async def close() -> None:
            await self.model.close()
            await self.engine.close()

        self.runner.run(close())
        self.runner.close()

    def pick(self, place: int, statuses: frozenset[Status] = frozenset()) -> JobId:
        """A job in one of these statuses if there is one, else any id that was ever used."""
        aimed = [job.id for job in self.records.values() if job.status in statuses]
        ids = aimed or self.ids
        return ids[-1 - place % len(ids)]

    def pick_claims(self, places: list[int], *, live: bool) -> list[Pair]:
        """Claims that still hold if there are any, else any that were ever handed out."""
        held = [pair for pair in self.claims if live and self.holds(pair[0])]
        pairs = held or self.claims
        return [pairs[place] for place in dict.fromkeys(-1 - place % len(pairs) for place in places)]

    def holds(self, claim: Claim) -> bool:
        record = self.records.get(claim.id)
        return record is not None and (record.worker, record.token) == (claim.worker, claim.token)

    def fitted(self, option: dict[str, Any]) -> dict[str, Any]:
        """A draft as the engine can take it: where calls reach one queue only, all jobs go to the first one."""
        if Feature.ACROSS_QUEUES in self.engine.features:
            return option
        unique = option.get("unique")
        if unique is not None:
            unique = msgspec.structs.replace(unique, scope="kind")
        return {**option, "queue": QUEUES[0], "unique": unique}

    def draft(self, option: dict[str, Any]) -> Draft:
        draft = Draft(self.mint(), **self.fitted(option))
        self.ids.append(draft.job_id)
        return draft

    def took(self, pairs: list[Pair]) -> None:
        """New claims: each under a higher token than the job ever had, within its budget, of a job never held twice."""
        for claim, _ in pairs:
            assert claim.token > self.tokens.get(claim.id, 0)
            assert 1 <= claim.attempt - claim.base <= claim.budget
            self.tokens[claim.id] = claim.token
        self.claims += pairs
        self.told += of_claims(mine for mine, _ in pairs)

    # --- calls --------------------------------------------------------------------------------------------------

    @rule(
        options=st.lists(values.drafts, min_size=1, max_size=3),
        again=st.sampled_from([None, None, None, 0, 1, 7]),
        link=values.linked,
    )
    def insert(
        self, options: list[dict[str, Any]], again: int | None = None, link: dict[str, Any] | None = None
    ) -> None:
        """New drafts, sometimes behind one whose id was used before, be its job there or gone."""
        drafts = [self.draft(option) for option in options]
        if drafts and link is not None:
            drafts[-1] = drafts[-1].then(self.draft(link))
        if again is not None:
            drafts.insert(0, msgspec.structs.replace(drafts[0], job_id=self.pick(again), unique=None))
        self.insert_both(drafts)

    def insert_both(self, drafts: list[Draft], group: Group | None = None) -> None:
        async def call(engine: Engine) -> Any:
            try:
                return await engine.jobs.insert(drafts, group=group)
            except Duplicate as error:
                return error.key, error.holder
            except (GroupClosed, NotFound, InvalidInput) as error:
                return str(error)

        receipts = self.same(call)
        if isinstance(receipts, list):
            self.told += of_insert(drafts, receipts, self.clock())

    @rule(
        options=st.lists(values.drafts, max_size=3),
        sealed=st.booleans(),
        link=values.linked,
        keep=st.sampled_from([None, 0, HOUR, 9 * DAY]),
    )
    def make_group(
        self, options: list[dict[str, Any]], sealed: bool, link: dict[str, Any] | None, keep: int | None
    ) -> None:
        """A group with its first members, and a callback of each sort, due a moment after the closing."""
        if not options and Feature.ACROSS_QUEUES not in self.engine.features:
            return  # the engine refuses members of a group that was stored without any
        group = self.mint()
        self.group_ids.append(group)
        drafts = [self.draft(option) for option in options]
        if drafts and link is not None:
            drafts[-1] = drafts[-1].then(self.draft(link))
        then, on_failure, on_finish = (
            self.draft({"kind": kind, "queue": QUEUES[0], "delay": 1}) for kind in ("then", "on_failure", "on_finish")
        )
        made = new_group(group, then=then, on_failure=on_failure, on_finish=on_finish, keep=keep, sealed=sealed)
        self.insert_both(into_group(group, drafts), made)

    @precondition(lambda self: self.group_ids)
    @rule(place=values.picks, options=st.lists(values.drafts, min_size=1, max_size=2))
    def join(self, place: int, options: list[dict[str, Any]]) -> None:
        """More members for a group, which may be closed or gone."""
        self.insert_both(into_group(self.pick_group(place), [self.draft(option) for option in options]))

    @precondition(lambda self: self.group_ids)
    @rule(
        place=values.picks,
        options=st.lists(values.drafts, min_size=1, max_size=3),
        step=st.sampled_from(["next", "next", "again", "beyond"]),
    )
    def place(self, place: int, options: list[dict[str, Any]], step: str) -> None:
        """A step of a group that is stored in steps: the next one, one that is stored already, one out of turn."""
        id_, drafts = self.pick_group(place), [self.draft(option) for option in options]
        placed = self.groups[id_].placed if id_ in self.groups else 0
        placed += {"next": len(drafts), "again": 0, "beyond": len(drafts) + 1}[step]
        self.insert_both(into_group(id_, drafts), msgspec.structs.replace(new_group(id_), placed=placed))

    @precondition(lambda self: self.group_ids)
    @rule(place=values.picks, abandoned=st.sampled_from([False, False, True]))
    def seal(self, place: int, abandoned: bool) -> None:
        self.same(lambda engine: engine.groups.seal(self.pick_group(place), abandoned=abandoned))

    @rule(closed=st.booleans(), limit=st.sampled_from([1, 3, 50]))
    def list_groups(self, closed: bool, limit: int) -> None:
        """All pages of a list."""

        async def walk(engine: Engine) -> list[Group]:
            found: list[Group] = []
            behind: Place | None = None
            while page := await engine.groups.find(closed=closed, behind=behind, limit=limit):
                found += page
                behind = page[-1].created_at, page[-1].id
            return found

        self.same(walk)

    def pick_group(self, place: int) -> JobId:
        """An open group if there is one, else any."""
        ids = [group.id for group in self.groups.values() if group.closed_at is None] or self.group_ids
        return ids[-1 - place % len(ids)]

    @rule(
        slot=st.integers(0, SLOTS - 1),
        queues=st.permutations(QUEUES),
        wanted=st.integers(1, 3),
        total=st.sampled_from([None, None, 0, 2]),
        alive=values.mostly,
    )
    def claim(self, slot: int, queues: list[str], wanted: int, total: int | None, alive: bool) -> None:
        if alive:
            self.renew(slot, honest=True, release=False)
        demand = Demand(self.workers[slot], tuple((queue, wanted) for queue in queues), total)
        self.took(_pairs(*self.both(lambda engine: engine.jobs.claim(demand))))

    @precondition(lambda self: self.claims)
    @rule(
        places=st.lists(values.picks, min_size=1, max_size=3, unique=True),
        outcome=values.good | values.bad,
        text=st.sampled_from([None, "a", "b"]),
        roll=st.sampled_from([0.0, 0.5]),
        followup=st.none() | values.drafts,
        fused=st.none() | st.integers(0, SLOTS - 1),
        live=values.mostly,
    )
    def settle(
        self,
        places: list[int],
        outcome: Outcome,
        text: str | None,
        roll: float,
        followup: dict[str, Any] | None,
        fused: int | None,
        live: bool,
    ) -> None:
        """End claims, old and new ones, by one outcome; sometimes with a note before and new claims behind."""
        if isinstance(outcome, Done) and followup is not None:
            outcome = Done(outcome.result, followups=(self.draft(followup),))
        pairs = self.pick_claims(places, live=live)
        group = pairs[0][0].options.group
        if isinstance(outcome, Done) and outcome.followups and group is not None and len(pairs) == 1:
            outcome = Done(outcome.result, followups=tuple(into_group(group, outcome.followups)))
        if text is not None:
            self.note(pairs, text)
        rules = Rules(roll=roll)
        demand = None if fused is None else Demand(self.workers[fused], tuple((queue, 1) for queue in QUEUES))
        settlements = (
            [conclude(mine, outcome, rules) for mine, _ in pairs],
            [conclude(theirs, outcome, rules) for _, theirs in pairs],
        )
        verdicts = self.settle_both(settlements, demand)
        for (mine, theirs), verdict in zip(pairs, verdicts, strict=True):
            if verdict is Verdict.CANCELING:
                asked = [
                    conclude(msgspec.structs.replace(one, cancel_requested=True), outcome) for one in (mine, theirs)
                ]
                assert self.settle_both(([asked[0]], [asked[1]]), None)[0] in (Verdict.APPLIED, Verdict.LOST)

    @precondition(lambda self: self.claims and Feature.OUTBOX in self.engine.features)
    @rule(place=values.picks, result=st.sampled_from([None, b'"it\\\'s"']), live=values.mostly)
    def settle_in_a_transaction(self, place: int, result: bytes | None, live: bool) -> None:
        """Hold a claim, old or new, and settle it as done, as a block does."""
        [pair] = self.pick_claims([place], live=live)

        async def call(engine: Engine, claim: Claim) -> bool:
            outbox = outbox_of(engine)
            try:
                async with engine.transaction() as tx:
                    held = await outbox.hold(claim, tx=tx)
                    return held is not None and await outbox.settle_last(conclude(held, Done(result)), tx=tx)
            except LostClaim:
                return False

        async def run() -> tuple[bool, bool]:
            return await call(self.model, pair[0]), await call(self.engine, pair[1])

        mine, theirs = self.runner.run(run())
        self.close_groups()
        assert mine == theirs
        if mine:
            claim = pair[0]
            assert (claim.id, claim.token) not in self.ended, "a claim ended twice"
            self.ended.add((claim.id, claim.token))
            self.told += of_settlements([claim], [conclude(claim, Done(result))], [Verdict.APPLIED], self.clock())

    @precondition(lambda self: self.claims)
    @rule(place=values.picks, rows=values.pages, live=values.mostly)
    def emit(self, place: int, rows: list[Step], live: bool) -> None:
        """Write pages of emitted values of a run."""
        [pair] = self.pick_claims([place], live=live)
        self.emitting.add(pair[0].id)

        async def run() -> list[list[Verdict]]:
            found = []
            for engine, claim in zip((self.model, self.engine), pair, strict=True):
                found.append(
                    await engine.steps.save([Save(claim.id, claim.worker, claim.token, tuple(rows), ref=claim.ref)])
                )
            return found

        mine, theirs = self.runner.run(run())
        assert mine == theirs

    @precondition(lambda self: self.claims)
    @rule(place=values.picks, steps=values.saved_steps, kid=st.none() | values.drafts, live=values.mostly)
    def save(self, place: int, steps: list[Step], kid: dict[str, Any] | None, live: bool) -> None:
        """Save rows of a run, sometimes with a job that it calls."""
        [pair] = self.pick_claims([place], live=live)
        waits, called, groups = self.call(kid)

        async def run() -> list[list[Verdict]]:
            found = []
            for engine, claim in zip((self.model, self.engine), pair, strict=True):
                one = Save(claim.id, claim.worker, claim.token, (*steps, *waits), called, groups, claim.ref)
                found.append(await engine.steps.save([one]))
            return found

        mine, theirs = self.runner.run(run())
        self.close_groups()
        assert mine == theirs
        self.told += of_called(called, mine[0], self.clock())

    @precondition(lambda self: self.claims)
    @rule(
        places=st.lists(values.picks, min_size=1, max_size=2, unique=True),
        steps=values.open_waits,
        after=st.none() | values.spans,
        wakes=st.sampled_from(Wakes),
        kid=st.none() | values.drafts,
        live=values.mostly,
    )
    def suspend(
        self,
        places: list[int],
        steps: list[Step],
        after: int | None,
        wakes: Wakes,
        kid: dict[str, Any] | None,
        live: bool,
    ) -> None:
        """Suspend runs on some waits; one alone may call a job and wait for its end."""
        pairs = self.pick_claims(places, live=live)
        waits, called, groups = self.call(kid if len(pairs) == 1 else None)
        outcome = Suspended((*steps, *waits), after, wakes, called, groups)
        settlements = (
            [conclude(mine, outcome) for mine, _ in pairs],
            [conclude(theirs, outcome) for _, theirs in pairs],
        )
        verdicts = self.settle_both(settlements, None)
        self.told += of_called(called, verdicts[0], self.clock())

    def call(self, kid: dict[str, Any] | None) -> tuple[tuple[Step, ...], tuple[Draft, ...], tuple[JobId, ...]]:
        """A job to be called, in a new group, and the wait for its end."""
        if kid is None:
            return (), (), ()
        group = self.mint()
        self.group_ids.append(group)
        draft = self.draft({**kid, "unique": None})
        return (Step(group_wait(group), StepState.WAITING),), tuple(into_group(group, [draft])), (group,)

    @rule(
        places=st.lists(values.picks, min_size=1, max_size=2),
        name=values.boxes,
        value=st.sampled_from([b"null", b"2"]),
        append=st.booleans(),
        again=values.mostly.map(lambda mostly: not mostly),
        by=values.signed,
        aimed=values.mostly,
    )
    def signal(
        self, places: list[int], name: str, value: bytes, append: bool, again: bool, by: By | None, aimed: bool
    ) -> None:
        """Answer waits of jobs, mostly of suspended ones."""
        suspended = [job.id for job in self.records.values() if job.suspended]
        ids = suspended if aimed and suspended else self.ids
        sent = [Signal(ids[-1 - place % len(ids)], name, value, append, again) for place in places]
        self.same(lambda engine: engine.steps.signal(sent, by=by))

    @rule(slot=st.integers(0, SLOTS - 1), options=values.few, outcomes=st.lists(values.good, min_size=1, max_size=4))
    def work_well(self, slot: int, options: list[dict[str, Any]], outcomes: list[Outcome]) -> None:
        self.insert(options)
        self.work(slot, outcomes)

    @rule(slot=st.integers(0, SLOTS - 1), options=values.few, outcomes=st.lists(values.bad, min_size=1, max_size=4))
    def work_badly(self, slot: int, options: list[dict[str, Any]], outcomes: list[Outcome]) -> None:
        self.insert(options)
        self.work(slot, outcomes)

    def work(self, slot: int, outcomes: list[Outcome]) -> None:
        """A worker takes what is due and ends it, in one breath."""
        self.renew(slot, honest=True, release=False)
        demand = Demand(self.workers[slot], tuple((queue, len(outcomes)) for queue in QUEUES), len(outcomes))
        pairs = _pairs(*self.both(lambda engine: engine.jobs.claim(demand)))
        self.took(pairs)
        ended = list(zip(pairs, outcomes, strict=False))
        settlements = (
            [conclude(mine, outcome) for (mine, _), outcome in ended],
            [conclude(theirs, outcome) for (_, theirs), outcome in ended],
        )
        assert set(self.settle_both(settlements, None)) <= {Verdict.APPLIED}

    def settle_both(
        self, settlements: tuple[list[Settlement], list[Settlement]], demand: Demand | None
    ) -> list[Verdict]:
        async def run() -> tuple[Settled, Settled]:
            return (
                await self.model.jobs.settle(settlements[0], demand=demand),
                await self.engine.jobs.settle(settlements[1], demand=demand),
            )

        mine, theirs = self.runner.run(run())
        self.close_groups()
        assert _told(theirs.verdicts) == _told(mine.verdicts)
        claims = {(claim.id, claim.token): claim for claim, _ in self.claims}
        settled = [claims[settlement.id, settlement.token] for settlement in settlements[0]]
        self.told += of_settlements(settled, settlements[0], mine.verdicts, self.clock())
        for settlement, *verdicts in zip(settlements[0], mine.verdicts, theirs.verdicts, strict=True):
            fence = (settlement.id, settlement.token)
            if Verdict.APPLIED in verdicts:
                assert fence not in self.ended, "a claim ended twice"
                self.ended.add(fence)
            if Verdict.REPEATED in verdicts:
                assert fence in self.ended, "called repeated, but never applied"
        self.took(_pairs(mine.claims, theirs.claims))
        return mine.verdicts

    def note(self, pairs: list[Pair], text: str) -> None:
        """Write on the records, through claims that may be stale."""

        def written(claim: Claim) -> Note:
            return Note(claim.id, claim.worker, claim.token, 0.25, {text: text}, (text,), claim.ref)

        async def run() -> tuple[list[Verdict], list[Verdict]]:
            return (
                await self.model.jobs.note([written(mine) for mine, _ in pairs]),
                await self.engine.jobs.note([written(theirs) for _, theirs in pairs]),
            )

        first, second = self.runner.run(run())
        assert first == second

    # --- leases -------------------------------------------------------------------------------------------------

    @rule(
        slot=st.integers(0, SLOTS - 1),
        honest=st.booleans(),
        release=st.sampled_from([False, False, True]),
        later=st.sampled_from([0, SECOND, ORPHANED_AFTER, ORPHANED_AFTER + 1]),
    )
    def renew(self, slot: int, honest: bool, release: bool, later: int = 0) -> None:
        """A worker renews what it held, or as one that lost its memory; unknown, it comes back under a new id."""
        self.clock.set(self.clock() + later)
        worker = self.workers[slot]
        held = list(dict.fromkeys((one.id, one.token) for one, _ in self.claims if honest and one.worker == worker))
        lease = 0 if release else LEASE
        mine, theirs = self.both(lambda engine: engine.jobs.renew(worker, held, lease=lease))
        orphans = _pairs(*(sorted(one.orphaned, key=lambda claim: claim.id) for one in (mine, theirs)))
        assert _plain(theirs) == _plain(mine)
        for orphan, _ in orphans:
            assert orphan.token == self.tokens[orphan.id], "an orphan that no worker was given"
        if not mine.known:
            assert not self.same(lambda engine: engine.jobs.renew(worker, [], first=True)).known
            name, life = worker.split(".")
            self.workers[slot] = f"{name}.{int(life) + 1}"
            self.enlist(self.workers[slot])

    @rule(
        slot=st.integers(0, SLOTS - 1),
        dead=st.none() | st.integers(0, SLOTS - 1),
        victim=st.integers(0, SLOTS - 1),
        later=st.sampled_from([0, LEASE, LEASE + 1, LEASE + 1]),
        alive=values.mostly,
    )
    def reap(self, slot: int, dead: int | None, victim: int, later: int, alive: bool) -> None:
        """A worker takes jobs and falls silent; one that may itself have lapsed tries to take over from the others."""
        self.claim(victim, list(QUEUES), 1, None, alive=True)
        self.clock.set(self.clock() + later)
        if alive:
            self.renew(slot, honest=True, release=False)
        names = [] if dead is None or dead == slot else [self.workers[dead]]
        mine, theirs = self.both(lambda engine: engine.jobs.reap(self.workers[slot], 100, dead=names))
        assert [claim.former_at for claim in theirs] == sorted(claim.former_at or 0 for claim in theirs)
        by_id = [sorted(claims, key=lambda claim: claim.id) for claims in (mine, theirs)]
        self.took(_pairs(*by_id))

    # --- operators ----------------------------------------------------------------------------------------------

    @rule(places=st.lists(values.picks, min_size=1, max_size=4, unique=True), change=values.waiting, by=values.signed)
    def alter_waiting(self, places: list[int], change: Change, by: By | None) -> None:
        self.alter(places, change, by=by)

    @rule(places=st.lists(values.picks, min_size=1, max_size=4, unique=True), change=values.finished, by=values.signed)
    def alter_finished(self, places: list[int], change: Change, by: By | None) -> None:
        self.alter(places, change, by=by)

    @rule(
        places=st.lists(values.picks, min_size=1, max_size=4, unique=True),
        change=values.waiting | values.finished,
        statuses=st.lists(st.sampled_from(list(Status)), max_size=3),
        ago=st.sampled_from([None, 0, SECOND, HOUR]),
    )
    def alter_anything(self, places: list[int], change: Change, statuses: list[Status], ago: int | None) -> None:
        self.alter(places, change, statuses, None if ago is None else self.clock() - ago, aimed=False)

    def alter(
        self,
        places: list[int],
        change: Change,
        statuses: Sequence[Status] = (),
        bound: Instant | None = None,
        *,
        aimed: bool = True,
        by: By | None = None,
    ) -> None:
        """Change jobs the change is meant for, or any."""
        wanted = action_of(change).statuses if aimed else frozenset[Status]()
        ids = tuple(dict.fromkeys(self.pick(place, wanted) for place in places))
        if isinstance(change, Clone | Fork):
            change = type(change)(tuple(self.mint() for _ in ids))
            self.ids += change.ids
        elif isinstance(change, Move) and Feature.ACROSS_QUEUES not in self.engine.features:
            change = Move(QUEUES[0])
        seen = tuple(itertools.islice(itertools.cycle(statuses), len(ids)))
        self.alter_both(Selection(ids, seen, bound), change, by)

    def alter_both(self, selection: Selection, change: Change, by: By | None) -> None:
        tally = self.same(lambda engine: engine.operator.alter(selection, change, by=by))
        self.told += of_alter(change, tally, self.clock())
        if isinstance(change, (Cancel, Discard)) and tally.former:
            self.undoable.append(tally.former)
        if isinstance(change, Restore):
            self.restored.update(tally.changed_ids)
        if isinstance(change, Delete):
            # Events of the instant of a deletion are the deleted job's; a new one under its id begins later.
            self.clock.set(self.clock() + 1)

    @rule(place=values.picks, again=st.booleans())
    def put(self, place: int, again: bool) -> None:
        """Store a job as another store has it, under another id or once more under its own."""
        job = self.pick(place)
        new = job if again else self.mint()

        async def put(engine: Engine) -> list[archive.Put]:
            [found], [steps] = await engine.operator.get([job]), await engine.steps.get([job])
            if found is None:
                return []
            return await engine.operator.put(
                [archive.read(archive.written(msgspec.structs.replace(found, id=new), steps), 1)]
            )

        if self.same(put) == [archive.Put.STORED]:
            self.ids.append(new)

    @precondition(lambda self: self.undoable)
    @rule(place=values.picks, by=values.signed)
    def undo(self, place: int, by: By | None) -> None:
        """Take back a cancel or a discard, late ones too; what happened to a job since refuses it."""
        former = self.undoable[-1 - place % len(self.undoable)]
        self.alter_both(Selection(tuple(one.id for one in former)), Restore(former), by)

    @rule(
        asked=values.questions,
        since=st.sampled_from([None, 0, MINUTE, HOUR]),
        ended=st.sampled_from([None, MINUTE, DAY]),
        group=st.none() | values.picks,
    )
    def search(self, asked: dict[str, Any], since: int | None, ended: int | None, group: int | None) -> None:
        """Walk all pages of a search, in whatever order; what makes no sense together is refused by both."""
        if since is not None:
            asked = {**asked, "since": START + since}
        if ended is not None:
            asked = {**asked, "finished_since": self.clock() - ended}
        if group is not None and self.group_ids:
            asked = {**asked, "group": self.pick_group(group)}

        async def walk(engine: Engine) -> list[Job]:
            found: list[Job] = []
            page = await engine.operator.find(Query(**asked))
            while page.cursor is not None:
                found += page.jobs
                page = await engine.operator.find(Query(**asked, cursor=page.cursor))
            return found + page.jobs

        try:
            Query(**asked)
        except InvalidInput:
            return
        self.same(walk)

    @rule(name=st.sampled_from("ab"), fresh=st.booleans(), by=values.signed)
    def write_documents(self, name: str, fresh: bool, by: By | None) -> None:
        """Tokens, sessions, operations: new ones, whose name may be taken, and changes of stored ones; no two alike."""
        used = next(self.numbers)
        token = AccessToken(name=name, sha256=digest(name), last_used=used)
        seen = next((one for one in self.same(documents.tokens) if one.name == name), None)
        self.same(lambda engine: documents.put_token(engine, token, before=None if fresh else seen, by=by))
        session = Session(sha256=digest(name), token=name, created=START, expires=START + used)
        known = next((one for one in self.same(documents.sessions) if one.token == name), None)
        self.same(
            lambda engine: (
                documents.put_session(engine, session) if fresh else documents.drop_session(engine, known or session)
            )
        )
        start = Operation(id=name, who="maria", action="cancel", filter="", bound=START, started=START, changed=used)
        stored = next((one for one in self.same(documents.operations) if one.id == name), None)
        self.same(lambda engine: documents.put_operation(engine, start, before=None if fresh else stored, by=by))
        worker = self.workers[name == "b"]
        told = next((one for one in self.same(documents.orders) if one.worker == worker), None)
        order = ordered(None if fresh else told, worker, "quiet" if fresh else "stack", START + used)
        self.same(lambda engine: documents.put_orders(engine, None if fresh else told, order))

    @rule(
        queue=st.sampled_from(QUEUES),
        tuning=st.builds(
            Tuning,
            paused=st.sampled_from([None, False, False, True]),
            workers=st.sampled_from([None, None, 0, 3]),
            fair=st.sampled_from([None, None, True, False]),
            limits=st.sampled_from([(), (), (("api", 3),), (("api", None),)]),
            rate=st.none() | values.rates,
            keep_done=st.sampled_from([None, 0, HOUR]),
            curve=st.sampled_from([None, Curve(on=True, base=SECOND, max=MINUTE)]),
            reopen=st.sampled_from([False, False, True]),
        ),
        pause_for=st.sampled_from([None, 1, HOUR]),
        clear=st.sets(st.sampled_from(SETTINGS), max_size=2),
        declared=values.mostly.map(lambda mostly: not mostly),
        by=values.signed,
    )
    def tune(
        self, queue: str, tuning: Tuning, pause_for: int | None, clear: set[str], declared: bool, by: By | None
    ) -> None:
        """Change settings, or declare them as code does."""
        if declared:
            tuning, by = msgspec.structs.replace(tuning, paused=None, limits=(), reopen=False), None
        else:
            unset = {field for field in clear if getattr(tuning, field) is None}
            tuning = msgspec.structs.replace(tuning, clear=frozenset(unset))
            if tuning.paused:
                tuning = msgspec.structs.replace(tuning, pause_for=pause_for, reason="deploy")
        self.same(lambda engine: engine.control.tune(queue, tuning, declared=declared, by=by))

    @rule(
        rates=st.none() | values.measures,
        spends=st.lists(values.spends, max_size=3),
        drain=st.booleans(),
        by=values.signed,
    )
    def spend_measures(self, rates: Rates | None, spends: list[Spend], drain: bool, by: By | None) -> None:
        """Declare a budget with measures or with keys, spend from it, correct that, empty it."""
        if rates is not None:
            self.same(lambda engine: engine.control.tune("llm", rates, declared=True, by=by))
        for one in spends:
            self.same(lambda engine, one=one: engine.control.spend("llm", one))  # type: ignore[misc]
        if drain:
            self.same(lambda engine: engine.control.drain("llm", key="a"))
        self.same(lambda engine: engine.control.buckets("llm"))

    @rule(rate=st.none() | values.rates, spends=st.lists(st.integers(1, 3), max_size=3), drain=st.booleans())
    def spend(self, rate: Rate | None, spends: list[int], drain: bool) -> None:
        """Set a budget, spend from it, empty it."""
        if rate is not None:
            self.same(lambda engine: engine.control.tune("sms", rate, declared=drain))
        for n in spends:
            self.same(lambda engine, n=n: engine.control.spend("sms", n))  # type: ignore[misc]
        if drain:
            self.same(lambda engine: engine.control.drain("sms"))

    @rule(
        span=st.sampled_from([1, SECOND, MINUTE, HOUR, 8 * DAY, 31 * DAY]),
        sweep=st.booleans(),
    )
    def pass_time(self, span: int, sweep: bool) -> None:
        self.clock.set(self.clock() + span)
        if sweep:
            self.same(lambda engine: engine.operator.expire(RETENTION))
            if self.group_ids:
                self.same(lambda engine: engine.groups.sweep())

    # --- schedules ----------------------------------------------------------------------------------------------

    @rule(option=values.schedules, draft=values.drafts, keep_edited=st.booleans())
    def schedule(self, option: dict[str, Any], draft: dict[str, Any], keep_edited: bool) -> None:
        """Store a schedule, new or over another one."""
        if option["misfire"] == "all":
            option, draft = {**option, "overlap": "allow"}, {**draft, "unique": None}
        given = Schedule(**option, template=Draft(NO_ID, **self.fitted(draft)))
        self.scheduled = True
        self.same(lambda engine: engine.schedules.put(given, keep_edited=keep_edited))

    @rule(change=values.edits, drops=st.sampled_from([False, False, False, True]), by=values.signed)
    def edit_schedule(self, change: Edit, drops: bool, by: By | None) -> None:
        if drops:
            self.same(lambda engine: engine.schedules.drop(change.name, by=by))
        else:
            self.same(lambda engine: engine.schedules.put(change, by=by))

    @rule(
        place=values.picks,
        later=st.sampled_from([0, SECOND, HOUR, 9 * HOUR]),
        off=st.sampled_from([0, 0, 0, HOUR, -HOUR]),
    )
    def tick(self, place: int, later: int, off: int) -> None:
        """Two tickers decide about a schedule, by a clock that may be wrong; only one of them can win."""
        stored = self.same(lambda engine: engine.schedules.read())
        if not stored:
            return
        self.clock.set(self.clock() + later)
        one = stored[place % len(stored)]
        decision = tick(one, self.clock() + off)
        drafts = [draft_of(one, at) for at in decision.fires]
        self.ids += [draft.job_id for draft in drafts]
        first = self.same(lambda engine: engine.schedules.fire(decision, drafts))
        second = self.same(lambda engine: engine.schedules.fire(decision, drafts))
        moves = decision.action is not Action.IDLE
        assert not (first.applied and second.applied and moves), "an occurrence was fired twice"
        assert not (first.applied and decision.at > self.clock()), "fired before its time"

    # --- check-ups ----------------------------------------------------------------------------------------------

    @rule()
    def check_up(self) -> None:
        """Every counter is what a count finds, and no unique key is left behind."""

        async def look(engine: Engine) -> Any:
            facts = await engine.diagnose()
            return [one for one in facts.counters if one.counter != one.found], facts.idle_keys

        assert self.same(look) == ([], 0)

    @rule()
    def read_history(self) -> None:
        """What both have on record: who changed what, and how many events of each type."""

        async def look(engine: Engine) -> Any:
            entries = await engine.audit.read(AuditQuery(limit=10_000))
            end = self.clock() + 1
            return (
                sorted(map(pack, entries)),
                await engine.timeline.event_counts(0, end),
                [_in_ticks(one) for one in await engine.timeline.latencies(Window(0, end))],
                await engine.timeline.late_minutes(closed_buckets(end)[0]),
            )

        self.record_events()
        self.same(look)


def of_called(drafts: Sequence[Draft], verdict: Verdict, at: Instant) -> list[Event]:
    """What a call that stored jobs means on the timeline."""
    if verdict is not Verdict.APPLIED:
        return []
    return of_insert(drafts, [Receipt(draft.job_id, Stored.INSERTED) for draft in drafts], at)


def _in_ticks(latency: Latency) -> Latency:
    """A latency as precisely as every engine keeps its wait."""
    return latency if latency.wait is None else msgspec.structs.replace(latency, wait=latency.wait // TICK)


def _plain(renewal: Renewal) -> tuple[bool, list[tuple[JobId, int]], list[tuple[JobId, int]], Orders | None]:
    return renewal.known, sorted(renewal.lost), sorted(renewal.canceling), read(renewal.orders)


def engine_machine(make_engine: MakeMachineEngine) -> type[LockStep]:
    """A machine that drives engines made by `make_engine`, one fresh store per example, beside the memory engine."""
    return type("EngineMachine", (LockStep,), {"make_engine": staticmethod(make_engine)})

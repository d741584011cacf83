from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.model.control import Queue
from stoker.model.errors import GroupClosed, GroupFailed, InvalidInput, NotFound
from stoker.model.groups import (
    GROUP,
    LEAST_KEPT,
    LOOKED_AGAIN,
    MOST_KNOWN,
    Group,
    GroupChange,
    Standing,
    changes,
    in_order,
    into_group,
    is_placed,
    kept_until,
    new_group,
    pack_callbacks,
    pack_members,
    placing,
    standing,
    unpack_callbacks,
    unpack_members,
)
from stoker.model.ids import text
from stoker.model.job import (
    ACTIVE,
    LARGEST_METADATA,
    PARENT,
    PLAIN,
    Draft,
    Job,
    Options,
    Status,
    chain,
    links,
    pack,
    salvaged,
    unpack,
)
from stoker.model.lifecycle import TRANSITIONS
from stoker.model.record import Record
from stoker.model.time import DAY, HOUR

ONE, TWO = b"1" * 16, b"2" * 16


def draft(number: int = 0, **fields: Any) -> Draft:
    return Draft(number.to_bytes(16), f"job{number}", **fields)


def record(status: Status, group: bytes | None = ONE) -> Record:
    base = Record.drafted(draft(7, options=PLAIN if group is None else Options(group=group)), 5)
    return msgspec.structs.replace(base, status=status)


def counted(group: Group, *steps: tuple[Record | None, Record | None, bool]) -> Group:
    for before, after, deleted in steps:
        for _, change in changes(before, after, deleted=deleted):
            group = group.counted(change, 9)
    return group


# --- what a step means ----------------------------------------------------------------------------------------------


@pytest.mark.spec("GROUP-03")
def test_a_status_counts_as_one_thing() -> None:
    assert {status for status in Status if standing(status) is Standing.WAITING} == ACTIVE
    assert standing(Status.DONE) is Standing.DONE
    assert standing(Status.DEAD) is standing(Status.DISCARDED) is Standing.DEAD
    assert standing(Status.CANCELED) is Standing.CANCELED
    assert standing(Status.RETRIED) is None


@pytest.mark.spec("GROUP-03", "GROUP-04", "GROUP-15")
@pytest.mark.parametrize("before", Status)
def test_every_transition_keeps_the_numbers_right(before: Status) -> None:
    """A group of one member counts exactly what that member is, after any transition of the table."""
    for after in TRANSITIONS[before]:
        start = counted(Group(id=ONE, sealed=True), (None, record(Status.PENDING), False))
        if before is not Status.PENDING:
            start = counted(start, (record(Status.PENDING), record(before), False))
        found = counted(start, (record(before), record(after), False))
        stands = standing(after)
        assert (found.done, found.dead, found.canceled, found.waiting) == tuple(
            int(stands is one) for one in (Standing.DONE, Standing.DEAD, Standing.CANCELED, Standing.WAITING)
        )
        assert found.total == (stands is not None)


@pytest.mark.spec("GROUP-03", "GROUP-06")
@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("deleted", [False, True])
def test_a_removed_member_is_done_or_canceled_if_it_was_active(status: Status, *, deleted: bool) -> None:
    found = list(changes(record(status), None, deleted=deleted))
    if status not in ACTIVE:
        assert found == []
    else:
        assert found == [(ONE, GroupChange(canceled=1) if deleted else GroupChange(done=1))]


@pytest.mark.spec("GROUP-14")
def test_a_replaced_member_is_canceled_for_its_former_group() -> None:
    before, joined = record(Status.PENDING, ONE), GroupChange(1, members=[draft(7).job_id], queue="default")
    assert list(changes(before, record(Status.PENDING, TWO))) == [(ONE, GroupChange(canceled=1)), (TWO, joined)]
    assert list(changes(before, record(Status.PENDING, None))) == [(ONE, GroupChange(canceled=1))]
    assert list(changes(record(Status.PENDING, None), before)) == [(ONE, joined)]
    assert list(changes(before, record(Status.PENDING, ONE))) == []


@pytest.mark.spec("GROUP-01")
def test_a_job_without_a_group_changes_nothing() -> None:
    for before in (None, record(Status.RUNNING, None)):
        for after in (None, record(Status.DONE, None)):
            assert list(changes(before, after)) == []


# --- the group ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("GROUP-01", "GROUP-07")
@given(st.booleans(), st.booleans(), st.lists(st.sampled_from(["done", "dead", "canceled", "waiting"]), max_size=6))
def test_a_group_is_complete_when_it_is_sealed_and_all_are_finished(
    sealed: bool, abandoned: bool, members: list[str]
) -> None:
    group = Group(id=ONE, then=draft(1), on_failure=draft(2), on_finish=draft(3)).made(4)
    for one in members:
        group = group.counted(GroupChange(1, one == "done", one == "dead", one == "canceled"), 5)
    if sealed:
        group = group.seal(abandoned=abandoned)
    assert group.complete == (sealed and "waiting" not in members)
    assert group.waiting == members.count("waiting")
    success = set(members) <= {"done"} and not (sealed and abandoned)
    assert group.succeeded == success
    assert [one.kind for one in group.callbacks] == (["job1", "job3"] if success else ["job2", "job3"])
    closed = group.close(6, None, DAY)
    assert (closed.closed_at, closed.expires_at, closed.complete, closed.created_at) == (6, 6 + DAY, False, 4)


@pytest.mark.spec("GROUP-10")
@pytest.mark.parametrize(
    ("app", "queue", "kept"),
    [
        (None, None, DAY),
        (HOUR, None, HOUR),
        (None, Queue(name="q", keep_done=DAY), DAY),
        (HOUR, Queue(name="q", keep_done=DAY), HOUR),
        (None, Queue(name="q", keep_done=2 * DAY), 2 * DAY),
        (HOUR, Queue(name="q", keep_done=2 * DAY), 2 * DAY),
        (0, None, LEAST_KEPT),
        (HOUR, Queue(name="q", keep_done=0), LEAST_KEPT),
    ],
)
def test_a_closed_group_is_kept_as_its_queue_was_tuned_else_as_its_app_says(
    app: int | None, queue: Queue | None, kept: int
) -> None:
    """The engine's default is a day here: a queue that was tuned to it counts as not tuned."""
    assert new_group(ONE, keep=app).close(6, queue, DAY).expires_at == 6 + kept


@pytest.mark.spec("GROUP-33")
@pytest.mark.parametrize(
    ("total", "dead", "kept"), [(MOST_KNOWN, 1, DAY), (MOST_KNOWN + 1, 0, DAY), (MOST_KNOWN + 1, 1, 9 * DAY)]
)
def test_a_large_group_that_failed_is_kept_like_a_dead_job(total: int, dead: int, kept: int) -> None:
    group = Group(id=ONE, sealed=True, total=total, dead=dead, done=total - dead)
    queue = Queue(name="q", keep_done=DAY, keep_dead=9 * DAY)
    assert group.close(6, queue, DAY).expires_at == 6 + kept
    assert group.close(6, msgspec.structs.replace(queue, keep_dead=HOUR), DAY).expires_at == 6 + DAY


@pytest.mark.spec("GROUP-33")
def test_a_group_stays_for_the_last_of_its_jobs() -> None:
    assert kept_until([], 10) is None
    assert kept_until([9, 8], 10) is None
    assert kept_until([9, 10], 10) == 10
    assert kept_until([12, 11], 10) == 12
    assert kept_until([12, None], 10) == 10 + LOOKED_AGAIN
    assert kept_until([None, 11 + LOOKED_AGAIN], 10) == 11 + LOOKED_AGAIN


@pytest.mark.spec("GROUP-02")
def test_callbacks_that_were_not_given_are_not_stored() -> None:
    assert new_group(ONE).callbacks == ()
    group = new_group(ONE, then=draft(1))
    assert [one.kind for one in group.callbacks] == ["job1"]
    assert group.seal(abandoned=True).callbacks == ()


@pytest.mark.spec("GROUP-17")
def test_ids_are_known_up_to_a_number() -> None:
    ids = [number.to_bytes(16) for number in range(MOST_KNOWN)]
    group = Group(id=ONE).counted(GroupChange(1, members=ids[:1], queue="a"), 3)
    assert (group.members, group.queue, group.touched_at) == ((ids[0],), "a", 3)
    group = group.counted(GroupChange(MOST_KNOWN - 1, members=ids[1:], queue="b"), 4)
    assert (group.members, group.queue, group.touched_at) == (tuple(ids), "a", 4)
    assert group.counted(GroupChange(done=1), 5).touched_at == 4
    group = group.counted(GroupChange(1, members=[ONE]), 5)
    assert group.members == group.counted(GroupChange(1, members=[TWO]), 6).members == ()


@pytest.mark.spec("GROUP-01")
def test_changes_add_up() -> None:
    change = GroupChange()
    change.add(GroupChange(1, 2, 3, 4, [ONE], "a"))
    change.add(GroupChange(-1, -1, -1, -1, [TWO], "b"))
    assert change == GroupChange(0, 1, 2, 3, [ONE, TWO], "a")
    assert (change.waiting, GroupChange(3, 1).waiting) == (-6, 2)


@pytest.mark.spec("GROUP-02")
def test_a_group_survives_being_stored() -> None:
    group = new_group(ONE, then=draft(1, payload=b"\xff"), on_finish=chain(draft(2), draft(3)), keep=5)
    found = unpack_callbacks(pack_callbacks(group))
    assert (found.then, found.on_failure, found.on_finish, found.keep) == (group.then, None, group.on_finish, 5)
    assert unpack_callbacks(b"{}").keep is None
    assert unpack_members(pack_members([ONE, TWO])) == (ONE, TWO)
    assert unpack_members(b"") == ()


@pytest.mark.spec("GROUP-03")
def test_the_group_of_a_job_is_read_from_options_that_are_broken_elsewhere() -> None:
    stored = pack(Options(timeout=5, group=ONE))
    assert stored is not None
    broken = stored.replace(b"5", b"-5")
    with pytest.raises(ValueError, match="timeout"):
        unpack(broken)
    assert salvaged(broken) == salvaged(broken.decode()) == Options(group=ONE)
    for hopeless in (b"{{", "{}", 7, None):
        assert salvaged(hopeless) is PLAIN


# --- making one -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("GROUP-11")
def test_members_carry_the_group_with_all_behind_them() -> None:
    [member] = into_group(ONE, [chain(draft(1), draft(2), draft(3))])
    assert [one.options.group for one in (member, *links(member.options))] == [ONE, ONE, ONE]


@pytest.mark.spec("GROUP-21")
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: into_group(ONE, [draft(1), draft(2), draft(1)]), "the same draft twice"),
        (lambda: into_group(ONE, [7]), "drafts"),  # type: ignore[list-item]
        (lambda: into_group(ONE, into_group(TWO, [draft()])), "member of group 32323232"),
        (lambda: into_group(ONE, [draft().then(*into_group(TWO, [draft(1)]))]), "member of group 32323232"),
        (lambda: new_group(ONE, then=[]), "must be a draft"),  # type: ignore[arg-type]
        (lambda: new_group(ONE, on_failure="send"), "must be a draft"),  # type: ignore[arg-type]
        (lambda: new_group(ONE, on_finish=into_group(TWO, [draft()])[0]), "member of group 32323232"),
        (lambda: new_group(ONE, then=draft(options=Options(metadata={"a": "x" * LARGEST_METADATA}))), "8192"),
        (lambda: Options(group=b"short"), "16 bytes"),
    ],
)
def test_what_cannot_be_a_group_is_refused(make: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        make()


@pytest.mark.spec("GROUP-02")
def test_a_callback_names_its_group() -> None:
    group = new_group(ONE, then=draft(options=Options(metadata={"a": "b"})))
    assert group.then is not None
    assert group.then.options.metadata == {"a": "b", GROUP: text(ONE)}


@pytest.mark.spec("GROUP-12")
def test_errors_name_the_group() -> None:
    assert GroupClosed(ONE).group_id == text(ONE)
    assert text(ONE) in str(NotFound.group(ONE))
    failed = GroupFailed(text(ONE), "1 of 2 dead", "id", "send", None)
    assert str(failed) == f"group {text(ONE)} failed: 1 of 2 dead; job id (send): no error recorded"
    assert str(GroupFailed(text(ONE), "abandoned")) == f"group {text(ONE)} failed: abandoned"


@pytest.mark.spec("GROUP-35")
@pytest.mark.parametrize(
    ("numbers", "state"),
    [
        ({"total": 2, "done": 2}, "open"),
        ({"total": 2, "done": 2, "closed_at": 1}, "done"),
        ({"total": 2, "done": 1, "canceled": 1, "closed_at": 1}, "failed"),
        ({"abandoned": True, "closed_at": 1}, "failed"),
    ],
)
def test_a_group_is_open_done_or_failed(numbers: dict[str, Any], state: str) -> None:
    assert Group(id=b"g" * 16, **numbers).state == state


@pytest.mark.spec("PASS-06")
def test_members_stand_as_they_were_given() -> None:
    """A link behind the job before it, a copy in place of its original; one that is gone keeps its place."""

    def job(n: int, parent: int | None = None, successor: int | None = None) -> Job:
        metadata = None if parent is None else {PARENT: text(parent.to_bytes(16))}
        return Job(
            id=n.to_bytes(16), kind="work", queue="q", payload=b"", status=Status.DONE, priority=0, attempts=1, base=0,
            budget=1, created_at=0, scheduled_at=0, options=Options(metadata=metadata),
            successor=None if successor is None else successor.to_bytes(16),
        )  # fmt: skip

    jobs = [
        job(1),
        job(2),
        job(4, 2),
        job(5, 1),
        job(6, 5),
        job(7, 1),
        job(8, successor=9),
        job(9),
        job(10, 9),
        job(11, 99),
    ]
    members = [n.to_bytes(16) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)]
    found = in_order(members, {one.id: one for one in jobs})
    assert [int.from_bytes(one) for one in found] == [1, 5, 6, 7, 2, 4, 3, 9, 10, 11]


@pytest.mark.spec("GROUP-38")
def test_drafts_are_placed_in_a_group_once_and_in_their_order() -> None:
    stored, given = Group(id=b"g" * 16, placed=1_000), Group(id=b"g" * 16, placed=1_500)
    assert placing(stored, given, 500) == msgspec.structs.replace(stored, placed=1_500)
    for nothing in ((None, given, 1_500), (stored, None, 500), (stored, Group(id=b"g" * 16), 500)):
        assert placing(*nothing) is None
        assert not is_placed(*nothing[:2])
    assert is_placed(given, stored) and is_placed(stored, stored) and not is_placed(stored, given)
    assert placing(given, stored, 1_000) is None
    with pytest.raises(InvalidInput, match="has 1000 drafts stored, and these begin at 900"):
        placing(stored, given, 600)
    with pytest.raises(InvalidInput, match="has 0 drafts stored, and these begin at 1000"):
        placing(None, given, 500)


@pytest.mark.spec("PASS-15")
def test_a_group_leads_to_its_callbacks_and_what_is_behind_them() -> None:
    first, second, third, other = (Draft(bytes([n]) * 16, f"job{n}") for n in range(4))
    group = new_group(b"g" * 16, then=chain(first, second), on_finish=third)
    found = [group.leads_to(draft.job_id) for draft in (first, second, third, other)]
    assert [None if one is None else (one[0], [draft.kind for draft in one[1]]) for one in found] == [
        ("then", ["job0"]),
        ("then", ["job0", "job1"]),
        ("on_finish", ["job2"]),
        None,
    ]


@pytest.mark.spec("PASS-15")
def test_the_counts_of_a_group_in_words() -> None:
    group = msgspec.structs.replace(new_group(b"g" * 16), total=3, done=1)
    assert group.counts == "of 3 members 1 done, 0 dead, 0 canceled, 2 not finished, not sealed yet"
    ended = msgspec.structs.replace(group, total=1).seal(abandoned=True)
    assert ended.counts == "of 1 members 1 done, 0 dead, 0 canceled, abandoned before it was sealed"


@pytest.mark.spec("GROUP-01")
def test_changes_of_a_group_add_up() -> None:
    change = GroupChange(total=2)
    change.add(GroupChange(total=3))
    assert change.total == 5

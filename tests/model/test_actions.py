"""The table of operators' actions: what each takes, makes and refuses, and that no skin lacks a word."""

from __future__ import annotations

import inspect
from itertools import count

import msgspec
import pytest

from stoker.admin.jobs import JobsAdmin
from stoker.model.actions import ACTIONS, MANY, OF_GROUP, Given, action_of, allows, on_group, on_many
from stoker.model.errors import InvalidInput
from stoker.model.filter import VIEWS
from stoker.model.job import Status
from stoker.model.query import Cancel, Change, Clone, Delete, Discard, Fork, Move, Prioritize, Requeue, RunNow
from stoker.model.record import WAITING

numbers = count(1)


def mint() -> bytes:
    return next(numbers).to_bytes(16)


@pytest.mark.spec("ADMIN-50")
@pytest.mark.parametrize(
    ("name", "given", "change"),
    [
        ("requeue", {}, Requeue()),
        ("run-now", {}, RunNow()),
        ("run-now", {"first": True}, RunNow(first=True)),
        ("cancel", {}, Cancel()),
        ("cancel", {"reason": None, "force": True}, Cancel(force=True)),
        ("cancel", {"reason": "late"}, Cancel("late")),
        ("discard", {}, Discard()),
        ("move", {"queue": "bulk", "create": True}, Move("bulk")),
        ("prioritize", {"priority": 7}, Prioritize(7)),
        ("delete", {}, Delete()),
    ],
)
def test_an_action_makes_its_change_of_what_is_given(name: str, given: Given, change: Change) -> None:
    made = on_many(name).making(given, mint)(1)
    assert made == change
    assert action_of(made).name == name


@pytest.mark.spec("ADMIN-50")
def test_a_copy_gets_new_ids() -> None:
    make = on_many("retry").making({}, mint)
    first, second = make(2), make(1)
    assert isinstance(first, Clone) and isinstance(second, Clone)
    assert len({*first.ids, *second.ids}) == 3
    assert make(0) == Clone(())
    [fork, behind] = [on_many("fork").making(given, mint)(1) for given in ({}, {"after": "charge"})]
    assert isinstance(fork, Fork) and isinstance(behind, Fork)
    assert (fork.after, behind.after, fork.ids == behind.ids) == (None, "charge", False)


@pytest.mark.spec("ADMIN-50")
@pytest.mark.parametrize(
    ("name", "given", "field", "why"),
    [
        ("move", {}, "queue", "is needed by move"),
        ("move", {"queue": None, "create": True}, "queue", "is needed by move"),
        ("prioritize", {}, "priority", "is needed by prioritize"),
        ("prioritize", {"priority": "high"}, "priority", "must be a whole number"),
        ("requeue", {"queue": "bulk"}, "queue", "does not belong to requeue"),
    ],
)
def test_a_refusal_names_the_field(name: str, given: Given, field: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as refused:
        on_many(name).making(given, mint)
    assert refused.value.field == field


@pytest.mark.spec("ADMIN-50")
def test_only_actions_on_many_are_done_to_many() -> None:
    assert "edit" in ACTIONS and "edit" not in MANY
    for unknown in ("edit", "restore", "burn"):
        with pytest.raises(InvalidInput, match="must be one of requeue, retry") as refused:
            on_many(unknown, "do")
        assert refused.value.field == "do"
    with pytest.raises(InvalidInput, match="goes with the id of one job"):
        on_many("run-now").check_many({"first": True})
    on_many("run-now").check_many({"first": False})
    on_many("move").check_many({"queue": "bulk"})


@pytest.mark.spec("ADMIN-50")
def test_a_deletion_by_filter_spares_running_jobs() -> None:
    delete = on_many("delete")
    assert delete.allowed(by_filter=False) - delete.allowed(by_filter=True) == {Status.RUNNING}
    assert on_many("cancel").allowed(by_filter=True) == on_many("cancel").statuses


@pytest.mark.spec("ADMIN-50")
@pytest.mark.parametrize("name", MANY)
def test_every_action_on_many_has_its_words_and_its_method(name: str) -> None:
    one = MANY[name]
    assert all((one.label, one.many_label(), one.summary, one.help, one.follows, one.keep, one.past)), name
    taken = inspect.signature(getattr(JobsAdmin, one.method)).parameters
    assert [parameter.name for parameter in one.parameters if parameter.name not in taken] == []
    words = dict.fromkeys(("kind", "queue", "still", "follows", *(each.name for each in one.parameters)), "x")
    for button in one.buttons:
        assert button.done.format(**words)
        assert button.idle.format(**words) or not one.idle
        assert button.undo in {"", "restore", "edit", name}
        assert button.question is not None or not button.asks
        assert button.form == bool(one.required and button.label)


@pytest.mark.spec("FIRST-01")
def test_only_a_waiting_job_can_be_put_first() -> None:
    assert {status for status in Status if allows(RunNow(first=True), status)} == set(WAITING)


@pytest.mark.spec("GROUP-36")
def test_an_action_on_a_group_means_members_that_it_changes() -> None:
    assert {name: one.of_group for name, one in OF_GROUP.items()} == {"retry": "dead", "cancel": "active"}
    assert all(VIEWS[one.of_group] <= one.statuses for one in OF_GROUP.values())
    assert on_group("cancel") is ACTIONS["cancel"]
    with pytest.raises(InvalidInput, match="must be one of retry, cancel"):
        on_group("delete")


WAYS = """
requeue     Requeue        Requeued     main readies takes_key
retry       Retry as copy  Copied       main readies takes_key
fork        Fork           Forked       readies
run-now     Run now        Made due     main readies edit
cancel      Cancel         Canceled     main restorable restore once_asked
discard     Discard        Discarded    main restorable restore
restore     Restore        Restored     one
edit        Edit           Edited       one form
move        Move           Moved        form move
prioritize  Prioritize     Prioritized  main prioritize
delete      Delete         Deleted      destroys
"""


@pytest.mark.spec("ADMIN-50")
def test_what_an_action_is_called_and_how_it_is_offered() -> None:
    """Its words, what it does beside its change, what undoes it, and whether its button is in the menu or asks."""
    rows = []
    for one in ACTIONS.values():
        flags = [] if one.many else ["one"]
        flags += ["main"] if one.buttons and one.buttons[0].main else []
        flags += [name for name in ("destroys", "readies", "takes_key", "restorable") if getattr(one, name)]
        flags += ["form"] if any(button.form for button in one.buttons) else []
        flags += sorted({button.undo for button in one.buttons} - {""})
        flags += ["once_asked"] if any(button.once_asked and not button.main for button in one.buttons) else []
        rows.append(f"{one.name:11} {one.label:14} {one.past:12} {' '.join(flags)}")
    assert rows == WAYS.strip().splitlines()


BUTTONS = """
requeue: Requeue; a retrying one: Requeue now; many: Requeue
retry: Retry as copy; many: Retry as copies
fork: Fork; many: Fork
run-now: Run this one now; many: Run now
cancel: Cancel; Take the claim away…; many: Cancel
discard: Discard; many: Discard
edit: Edit…
move: Move…; many: Move
prioritize: many: Prioritize
delete: Delete…; many: Delete
"""


@pytest.mark.spec("ADMIN-50")
def test_what_stands_on_the_buttons_of_an_action() -> None:
    rows = []
    for one in ACTIONS.values():
        said = []
        for button in one.buttons:
            said += [button.label] if button.label else []
            said += [f"a {status} one: {label}" for status, label in button.labels.items()]
        said += [f"many: {one.many_label()}"] if one.many else []
        rows += [f"{one.name}: {'; '.join(said)}"] if said else []
    assert rows == BUTTONS.strip().splitlines()


@pytest.mark.spec("ADMIN-50")
def test_what_an_action_takes_is_named_on_the_command_line_and_bounded() -> None:
    taken = {
        f"{one.name} {given.option or given.name}": (given.plain, given.required, given.one_job, given.metavar)
        for one in ACTIONS.values()
        for given in one.parameters
    }
    assert taken == {
        "fork after": (str, False, True, "STEP"),
        "run-now first": (bool, False, True, None),
        "cancel reason": (str, False, False, None),
        "cancel force": (bool, False, False, None),
        "cancel children": (bool, False, True, None),
        "move to": (str, True, False, "QUEUE"),
        "move create": (bool, False, False, None),
        "prioritize priority": (int, True, False, "N"),
    }
    bounds: dict[str, tuple[list[object], list[object]]] = {
        "after": (["s", "s" * 500], ["", "s" * 501]),
        "reason": (["r", "r" * 1_000], ["", "r" * 1_001]),
        "queue": (["q", "q" * 128], ["", "q" * 129, "a queue"]),
        "priority": ([-1_000, 1_000], [-1_001, 1_001]),
    }
    types = {given.name: given.type for one in ACTIONS.values() for given in one.parameters}
    for name, (fine, wrong) in bounds.items():
        for value in fine:
            assert msgspec.convert(value, types[name]) == value
        for value in wrong:
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert(value, types[name])

"""The tests of the tests: every bug can still be planted and was caught, and what survives has a reason."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.mutants import results
from tests.mutants.mutate import compiled, mutants
from tests.mutants.seeded_run import ROOT, bugs, judged

FEWEST = 40


@pytest.mark.spec("MUTANT-01")
def test_every_seeded_bug_can_be_planted_in_this_tree() -> None:
    known = bugs()
    assert [fault for one in known if (fault := one.fault()) is not None] == []
    assert [name for name, n in Counter(one.name for one in known).items() if n > 1] == []
    assert len(known) >= FEWEST


@pytest.mark.spec("MUTANT-01")
def test_a_seeded_bug_is_still_python() -> None:
    for bug in bugs():
        if bug.file.endswith(".py"):
            ast.parse((ROOT / bug.file).read_text("utf-8").replace(bug.before, bug.after), bug.name)


@pytest.mark.spec("MUTANT-01")
def test_every_seeded_bug_was_caught_when_it_was_planted_last() -> None:
    found = {one.name: one.outcome for one in results.seeded()}
    assert found == {one.name: "caught" for one in bugs()}, "run: scripts/mutants seeded"


@pytest.mark.spec("MUTANT-01")
def test_only_a_test_that_fails_catches_a_bug() -> None:
    [bug, *_] = bugs()
    assert judged(bug, 1, "FAILED tests/a.py::test_b - no\n1 failed", 1.0).outcome == "caught"
    assert judged(bug, None, "", 1.0).outcome == "caught"
    assert judged(bug, 0, "3 passed", 1.0).outcome == "missed"
    assert judged(bug, 5, "no tests ran", 1.0).outcome == "error"
    assert (
        judged(bug, 2, "ERROR tests/a.py - SyntaxError\nInterrupted: 1 error during collection", 1.0).outcome == "error"
    )


@pytest.mark.spec("MUTANT-03")
def test_every_change_that_survived_has_a_reason() -> None:
    assert [name for name in results.model().survivors if name not in results.reasons()] == []


SOURCE = '''
"""A module."""
LIMIT: int = 3

def half(n: int, *, up: bool = False) -> int:
    """Half of it."""
    if n < 0 or n > LIMIT:
        raise ValueError("too much")
    return n // 2 + (1 if up else 0)
'''


@pytest.mark.spec("MUTANT-02")
def test_changes_swap_one_thing_and_leave_words_alone() -> None:
    found = mutants("half.py", SOURCE)
    assert [(one.function, one.line, one.change) for one in found] == [
        ("", 3, "LIMIT: int = 3 -> LIMIT: int = 4"),
        ("", 5, "n: int, *, up: bool=False -> n: int, *, up: bool=True"),
        ("half", 7, "if n < 0 or n > LIMIT: pass -> if not (n < 0 or n > LIMIT): pass"),
        ("half", 7, "n < 0 or n > LIMIT -> n < 0 and n > LIMIT"),
        ("half", 7, "n < 0 -> n <= 0"),
        ("half", 7, "n < 0 -> n < 1"),
        ("half", 7, "n > LIMIT -> n >= LIMIT"),
        ("half", 8, "raise ValueError('too much') -> pass"),
        ("half", 9, "return n // 2 + (1 if up else 0) -> return None"),
        ("half", 9, "n // 2 + (1 if up else 0) -> n // 2 - (1 if up else 0)"),
        ("half", 9, "n // 2 -> n * 2"),
        ("half", 9, "n // 2 -> n // 3"),
        ("half", 9, "1 if up else 0 -> 0 if up else 1"),
        ("half", 9, "1 if up else 0 -> 2 if up else 0"),
        ("half", 9, "1 if up else 0 -> 1 if up else 1"),
    ]


@pytest.mark.spec("MUTANT-02")
def test_a_change_is_compiled_into_the_module() -> None:
    [number] = [one.number for one in mutants("half.py", SOURCE) if one.change == "n // 2 -> n * 2"]
    names: dict[str, object] = {}
    exec(compiled(SOURCE, "half.py", number), names)
    assert names["half"](3) == 6  # type: ignore[operator]


@pytest.mark.spec("MUTANT-03")
def test_every_change_has_a_name_of_its_own() -> None:
    found = mutants("twice.py", "def twice(n):\n    return n + 1 if n > 1 else n + 1\n")
    assert len({one.name for one in found}) == len(found)
    assert "twice.py twice: n + 1 -> n - 1 (no. 2)" in {one.name for one in found}

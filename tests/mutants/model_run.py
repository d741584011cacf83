"""Runs the tests of `model/` against small changes of its source, each change in a process of its own.

One process collects the tests once. For each change it forks: the child swaps the code of the changed function and
runs only the tests that execute its lines, the quickest first, until one fails. What runs at import cannot be swapped:
for it a child is forked where Stoker was never imported, and imports the changed module.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pickle
import random
import resource
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from tests.mutants.mutate import Mutant, compiled, mutants

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "src" / "stoker" / "model"
TESTS = "tests/model"
QUIET = ["-qq", "--no-header", "--no-summary", "--tb=no", "-p", "no:cacheprovider", "-o", "timeout=0", "-s"]
QUIET += ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:schemathesis"]
WARM = (
    "asyncio",
    "click",
    "cronsim",
    "hypothesis.strategies",
    "msgspec.json",
    "psycopg",
    "redis",
    "rich.console",
    "sqlite3",
)
"""What children need not import: libraries that know nothing of Stoker."""
MEMORY = 3 << 30
"""Bytes of address space that a child may use: a change can make a list grow for ever."""
SURVIVED, KILLED, BROKEN = 0, 1, 3


@dataclass
class Known:
    """What the run without a change has shown."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Of each test."""
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    """The tests that execute a line, by the name of the module."""


def sources(only: Sequence[str] = ()) -> dict[str, str]:
    """The modules by their names below `model/`."""
    found = {path.relative_to(MODEL).as_posix(): path.read_text("utf-8") for path in sorted(MODEL.rglob("*.py"))}
    return {name: text for name, text in found.items() if not only or name in only}


def changes(texts: dict[str, str], seed: int) -> list[Mutant]:
    """Every change there is, in an order that the seed decides: the first ones are a fair sample."""
    found = [one for name, text in texts.items() for one in mutants(name, text)]
    random.Random(seed).shuffle(found)
    return found


def digest() -> str:
    """What the rules and their tests are, as a number: a run goes on only where both are the same."""
    found = hashlib.sha256()
    for path in sorted([*MODEL.rglob("*.py"), *(ROOT / TESTS).rglob("*.py")]):
        found.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def run(picked: Sequence[Mutant], texts: dict[str, str], jobs: int, say: Callable[[str], None]) -> dict[int, str]:
    """What became of each change, by its place in the list: killed, timeout or survived."""
    with tempfile.TemporaryDirectory(prefix="stoker-mutants-") as scratch:
        warm = Warm(picked, texts, jobs, say, Path(scratch) / "warm")
        first = os.fork()
        if not first:
            code: int = BROKEN
            try:
                code = pytest.main([TESTS, *QUIET], plugins=[warm])  # the parent imports nothing of Stoker
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        if status or not warm.told.exists():
            raise SystemExit(f"the tests of {TESTS} do not pass without a change; run scripts/test {TESTS}")
        known: Known
        results: dict[int, str]
        known, results = pickle.loads(warm.told.read_bytes())
    for name in WARM:
        importlib.import_module(name)
    at_import = [number for number, one in enumerate(picked) if number not in results]
    say(f"{len(at_import)} changes of what runs at import")

    def import_and_test(number: int) -> int:
        one = picked[number]
        sys.meta_path.insert(0, Changed(one.module, compiled(texts[one.module], str(MODEL / one.module), one.number)))
        return 1 if pytest.main([*test_files(one.module, known), "-x", *QUIET], plugins=[NoShrinking()]) else 0

    patience = 3 * sum(known.seconds.values()) + 20
    results.update(
        forked(at_import, import_and_test, lambda _: patience, lambda number: picked[number].name, jobs, say)
    )
    return results


def test_files(module: str, known: Known) -> list[str]:
    """The tests that call or name a module, or name the package that it is in, its own first."""
    dotted = f"stoker.model.{module.removesuffix('.py').replace('/', '.')}"
    package = dotted.rpartition(".")[0]
    words = (f"{dotted} import", f"import {dotted}", f"from {package} import", "from stoker import model")
    named = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / TESTS).rglob("test_*.py")
        if any(word in path.read_text("utf-8") for word in words)
    }
    called = {test.partition("::")[0] for tests in known.lines.get(module, {}).values() for test in tests}
    own = f"test_{module.rpartition('/')[2]}"
    return sorted(named | called, key=lambda path: (not path.endswith(own), path not in named, path))


class NoShrinking:
    """Hypothesis neither shrinks nor judges speed: a failure is enough."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        hypothesis.settings.register_profile(
            "mutants",
            hypothesis.settings.get_profile("default"),
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
            suppress_health_check=list(hypothesis.HealthCheck),
            database=None,
            report_multiple_bugs=False,
        )
        hypothesis.settings.load_profile("mutants")


class Warm(NoShrinking):
    """The part of pytest that runs the tests: once as they are, then once for each change of a function."""

    def __init__(
        self, picked: Sequence[Mutant], texts: dict[str, str], jobs: int, say: Callable[[str], None], told: Path
    ) -> None:
        self.picked, self.texts, self.jobs, self.say, self.told = picked, texts, jobs, say, told

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        began = time.monotonic()
        known = look(session.items)
        self.say(f"{len(session.items)} tests pass without a change, {time.monotonic() - began:.0f} s")
        items = {item.nodeid: item for item in session.items}
        live = functions()
        originals = {name: compile(text, str(MODEL / name), "exec") for name, text in self.texts.items()}
        gc.collect()
        gc.freeze()  # the children share the memory of this process

        def swap_and_test(number: int) -> int:
            one = self.picked[number]
            changed = compiled(self.texts[one.module], str(MODEL / one.module), one.number)
            swapped = 0
            for old, new in different(originals[one.module], changed):
                for function in live.get(old, ()):
                    function.__code__ = new
                    swapped += 1
            if not swapped:
                return BROKEN
            for test in tests_of(one, known):
                if any(report.failed for report in runtestprotocol(items[test], nextitem=None, log=False)):
                    return KILLED
            return SURVIVED

        def patience(number: int) -> float:
            return 10 + 5 * sum(known.seconds[test] for test in tests_of(self.picked[number], known))

        inside = [number for number, one in enumerate(self.picked) if one.function]
        self.say(f"{len(inside)} changes of functions")
        results = forked(inside, swap_and_test, patience, lambda number: self.picked[number].name, self.jobs, self.say)
        self.told.write_bytes(pickle.dumps((known, results)))
        return True


def look(items: Sequence[pytest.Item]) -> Known:
    """Run every test in a child, which leaves no cached answer here, and read which lines it executes."""
    out, into = os.pipe()
    child = os.fork()
    if not child:
        os.close(out)
        known, status = Known(), 0
        tracer = coverage.Coverage(data_file=None, config_file=False, include=[f"{MODEL}/*"])
        tracer.start()
        for item in items:
            tracer.switch_context(item.nodeid)
            began = time.process_time()
            if any(report.failed for report in runtestprotocol(item, nextitem=None, log=False)):
                print(f"fails without a change: {item.nodeid}", flush=True)
                status = BROKEN
            known.seconds[item.nodeid] = time.process_time() - began
        tracer.stop()
        data = tracer.get_data()
        for file in data.measured_files():
            name = Path(file).relative_to(MODEL).as_posix()
            known.lines[name] = {
                line: [one for one in tests if one] for line, tests in data.contexts_by_lineno(file).items()
            }
        with os.fdopen(into, "wb") as pipe:
            pickle.dump(known, pipe)
        os._exit(status)
    os.close(into)
    with os.fdopen(out, "rb") as pipe:
        text = pipe.read()
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        os._exit(BROKEN)
    found: Known = pickle.loads(text)
    return found


def tests_of(one: Mutant, known: Known) -> list[str]:
    """The tests that execute the lines of a change, the quickest first."""
    lines = known.lines.get(one.module, {})
    found = {test for line in range(one.line, one.last_line + 1) for test in lines.get(line, ())}
    return sorted(found, key=lambda test: (known.seconds[test], test))


def functions() -> dict[CodeType, list[FunctionType]]:
    """The functions of the model that exist in this process, by their code."""
    found: dict[CodeType, list[FunctionType]] = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename.startswith(str(MODEL)):
            found[one.__code__].append(one)
    return found


def different(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The codes that differ, those inside others included."""
    if old != new:
        yield old, new
        inner = [[one for one in code.co_consts if isinstance(one, CodeType)] for code in (old, new)]
        for before, after in zip(*inner, strict=False):
            yield from different(before, after)


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module of the model from a changed code."""

    def __init__(self, module: str, code: CodeType) -> None:
        self.name = f"stoker.model.{module.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
        self.code, self.path = code, MODEL / module

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def exec_module(self, module: Any) -> None:
        exec(self.code, module.__dict__)


def forked(
    numbers: Sequence[int],
    body: Callable[[int], int],
    patience: Callable[[int], float],
    names: Callable[[int], str],
    jobs: int,
    say: Callable[[str], None],
) -> dict[int, str]:
    """Call the body for each number in a child of its own, with a bound on its CPU time and on its time as a whole."""
    results: dict[int, str] = {}
    at_work: dict[int, tuple[int, float]] = {}
    waiting = list(numbers)
    began = time.monotonic()
    while waiting or at_work:
        while waiting and len(at_work) < jobs:
            number = waiting.pop(0)
            seconds = patience(number)
            child = os.fork()
            if not child:
                in_child(number, body, seconds)
            at_work[child] = number, time.monotonic() + 20 * seconds
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            time.sleep(0.002)
            for one, (_number, deadline) in at_work.items():
                if time.monotonic() > deadline:
                    os.kill(one, signal.SIGKILL)
            continue
        number, _ = at_work.pop(child)
        code = os.waitstatus_to_exitcode(status)
        if code == BROKEN:
            continue  # what was changed lives in no function: it belongs to the import
        results[number] = {SURVIVED: "survived", KILLED: "killed"}.get(code, "timeout" if code < 0 else "killed")
        if results[number] == "survived":
            say(f"survived  {names(number)}")
        if len(results) % 100 == 0:
            say(f"{len(results)} of {len(numbers)} tried, {time.monotonic() - began:.0f} s")
    return results


def in_child(number: int, body: Callable[[int], int], seconds: float) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    code = KILLED  # a change that ends the process, or breaks pytest itself, was noticed
    try:
        code = body(number)
    finally:
        os._exit(code)

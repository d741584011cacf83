"""Type checkers see what the public face promises: `accepted.py` passes, `refused.py` fails exactly where it says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ACCEPTED, REFUSED = HERE / "accepted.py", HERE / "refused.py"
EXPECTED = re.compile(r"# E: ([a-z-]+) \| ([\w+]+)")

Findings = set[tuple[str, int, str]]


def expected(checker: int) -> Findings:
    lines = REFUSED.read_text(encoding="utf-8").splitlines()
    marks = ((number, EXPECTED.search(line)) for number, line in enumerate(lines, 1))
    return {("refused.py", number, rule) for number, mark in marks if mark for rule in mark[1 + checker].split("+")}


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout, done.stderr
    return done.stdout


def mypy() -> Findings:
    output = run(sys.executable, "-m", "mypy", "--output=json", "--no-error-summary", str(ACCEPTED), str(REFUSED))
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {(Path(one["file"]).name, one["line"], one["code"]) for one in found if one["severity"] == "error"}


def pyright(program: str) -> Findings:
    output = run(program, "--outputjson", "--pythonpath", sys.executable, str(ACCEPTED), str(REFUSED))
    found = json.loads(output)["generalDiagnostics"]
    return {
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one.get("rule", ""))
        for one in found
        if one["severity"] == "error"
    }


@pytest.mark.spec("API-19")
def test_mypy_sees_every_mistake_and_no_other() -> None:
    assert mypy() == expected(0)


@pytest.mark.spec("API-19")
def test_pyright_sees_every_mistake_and_no_other() -> None:
    program = shutil.which("pyright", path=str(Path(sys.executable).parent)) or shutil.which("pyright")
    if program is None or shutil.which("node") is None:
        pytest.skip("pyright or node is not installed here")
    assert pyright(program) == expected(1)

"""Every example runs from a bare folder and says nothing on the error stream but log lines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "WAL-reset" not in done.stdout + done.stderr


@pytest.mark.spec("SQLITE-55")
def test_the_program_of_the_readme_prints_its_greeting_and_no_line_more(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python file=app.py\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert found is not None
    (tmp_path / "app.py").write_text(found[1], encoding="utf-8")
    command = [sys.executable, "-W", "error", "app.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("hello world\n", "", 0)


def test_the_readme_answers_a_newcomers_questions_in_their_order() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", readme, re.MULTILINE)
    assert headings == ["Why Stoker", "A first program", "Guarantees", "Install", "Two commands", "Documentation"]
    why = readme.partition("## Why Stoker")[2].partition("\n## ")[0]
    assert len(re.findall(r"^- \*\*", why, re.MULTILINE)) == 5
    assert readme.index("![") < readme.index("## Why Stoker")

"""What commands print cannot move a terminal's cursor, change its colours or forge a line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import stoker.cli
from stoker.admin import Admin
from stoker.app import Stoker
from stoker.cli.command import stoker as command
from stoker.cli.text import say

COMMANDS = sorted(Path(stoker.cli.__file__).parent.glob("*.py"))
HOSTILE = "deploy\x1b[2J\x9b31m\u202e\nfake: line"


@pytest.mark.spec("CLI-58")
@pytest.mark.parametrize("file", COMMANDS, ids=lambda file: file.stem)
def test_every_command_prints_through_say(file: Path) -> None:
    found = re.findall(
        r"\bclick\.s?echo\(|(?<![\w.])print\(|sys\.std(?:out|err)\.write\(", file.read_text(encoding="utf-8")
    )
    assert found == (["click.echo("] if file.stem == "text" else [])


@pytest.mark.spec("CLI-58")
def test_say_makes_control_and_direction_characters_visible(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\tb\x1b[2J\u202ec")
    say("beside", err=True, nl=False)
    assert capsys.readouterr() == ("a\tb\\x1b[2J\\u202ec\n", "beside")


@pytest.mark.spec("CLI-60")
def test_colours_are_for_terminals_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Stoker("sqlite:///jobs.db").run(_opened())
    words = ["doctor", "--url", "sqlite:///jobs.db"]
    piped = CliRunner().invoke(command, words).output
    assert "ok       schema: up to date" in piped
    assert "x1b" not in piped
    assert "\x1b" not in piped
    shown = CliRunner().invoke(command, words, color=True).output
    assert "\x1b[32mok     \x1b[0m  schema: up to date" in shown


async def _opened() -> None:
    async with Stoker("sqlite:///jobs.db") as app:
        await app.engine()


@pytest.mark.spec("CLI-58")
@pytest.mark.parametrize("words", [("queues", "show", "mail"), ("queues", "list"), ("status",), ("audit",)])
def test_a_reason_for_a_pause_forges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    app = Stoker(f"sqlite:///{tmp_path / 'jobs.db'}")
    admin = Admin(app, by="ada\x1b[2J", way="code")

    async def pause() -> None:
        async with app:
            await admin.queues.pause("mail", reason=HOSTILE, create=True)

    app.run(pause())
    monkeypatch.setenv("STOKER_URL", f"sqlite:///{tmp_path / 'jobs.db'}")
    monkeypatch.delenv("STOKER_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(command, list(words))
    assert "deploy" in shown.output
    assert not re.search("[\x1b\x9b\u202e]", shown.output)
    assert not [line for line in shown.output.splitlines() if line.startswith("fake")]


@pytest.mark.spec("CLI-59")
@pytest.mark.parametrize("log_format", ["plain", "json"])
def test_serve_logs_as_work_does(tmp_path: Path, log_format: str) -> None:
    """A real process: what is logged while its app is loaded is one line, which text cannot forge."""
    (tmp_path / "app.py").write_text(
        "import logging\nlogging.getLogger('stoker.web').warning('a\\x1b[2Jb\\nfake')\n", encoding="utf-8"
    )
    line = [sys.executable, "-m", "stoker", "serve", "app:jobs", "--log-format", log_format]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0, "there is no app in it"
    first, second, *_ = done.stderr.splitlines()
    if log_format == "json":
        assert json.loads(first)["message"] == "a\x1b[2Jb\nfake"
    else:
        assert re.fullmatch(r"\S+Z WARNING stoker\.web: a\\x1b\[2Jb", first)
        assert second == "    fake"

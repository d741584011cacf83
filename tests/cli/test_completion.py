"""What shells get, run by the shells that are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner

from stoker.app import Stoker
from stoker.cli.command import stoker


@pytest.mark.spec("CLI-31")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_it_understands(shell: str) -> None:
    found = CliRunner().invoke(stoker, ["completion", shell])
    assert found.exit_code == 0
    assert "_STOKER_COMPLETE" in found.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=found.stdout, text=True, check=True)


@pytest.mark.spec("CLI-31")
def test_bash_completes_a_command() -> None:
    environ = {"_STOKER_COMPLETE": "bash_complete", "COMP_WORDS": "stoker do", "COMP_CWORD": "1"}
    found = subprocess.run(["stoker"], env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    assert "plain,doctor" in found.stdout


@pytest.mark.spec("CLI-31")
def test_an_unknown_shell_is_wrong_usage() -> None:
    found = CliRunner().invoke(stoker, ["completion", "tcsh"])
    assert found.exit_code == 2
    assert "bash" in found.output


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a queue, a kind and a schedule."""
    app = Stoker(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task(name="send", queue="mail")
    async def send() -> None: ...

    async def fill() -> None:
        async with app:
            await send.enqueue()
            await app.schedule("digest", send.draft(), every=3600)

    app.run(fill())
    monkeypatch.setenv("STOKER_URL", f"sqlite:///{tmp_path / 'jobs.db'}")
    monkeypatch.delenv("STOKER_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def completed(*words: str, shell: str = "zsh") -> list[str]:
    """What is offered for the last word."""
    found = get_completion_class(shell)
    assert found is not None
    args, incomplete = list(words[:-1]), words[-1]
    return [one.value for one in found(stoker, {}, "stoker", "").get_completions(args, incomplete)]


@pytest.mark.spec("CLI-76")
def test_names_of_the_store_and_words_of_a_filter_are_completed(store: Path) -> None:
    assert completed("queues", "pause", "m") == ["mail"]
    assert completed("queues", "resume", "") == ["mail"]
    assert completed("jobs", "move", "is:dead", "--to", "ma") == ["mail"]
    assert completed("stats", "--queue", "") == ["mail"]
    assert completed("schedules", "run", "") == completed("schedules", "pause", "dig") == ["digest"]
    assert completed("jobs", "enqueue", "s") == ["send"]
    assert completed("jobs", "list", "k") == ["kind:", "key:"]
    assert completed("jobs", "list", "is:de") == ["is:dead"]
    assert completed("jobs", "requeue", "is:dead", "kind:") == ["kind:send"]
    assert completed("jobs", "list", "-queue:") == ["-queue:mail"]
    assert completed("jobs", "list", "queue:mail,m") == ["queue:mail,mail"]
    assert completed("jobs", "list", "order:f") == ["order:finished"]
    assert completed("jobs", "list", "tenant:") == []
    assert "--limit" in completed("jobs", "list", "--l")


@pytest.mark.spec("CLI-76")
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_behind_a_colon(store: Path) -> None:
    """A real bash takes `kind:se` for three words, and replaces the last one."""
    script = 'source <(stoker completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()\n'
    script += '_stoker_completion stoker; printf "%s\\n" "${COMPREPLY[@]}"'
    for words, answer in (("jobs list is:dead kind : se", "send\n"), ("jobs list is : d", "done\ndead\ndiscarded\n")):
        line = ["bash", "-c", script, "bash", "stoker", *words.split()]
        found = subprocess.run(line, capture_output=True, text=True, check=True)
        assert (found.stdout, found.stderr) == (answer, "")


@pytest.mark.spec("CLI-76")
def test_a_store_that_cannot_be_asked_completes_nothing(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (store / "loud.py").write_text("print('hello')\nraise RuntimeError('no')\n", encoding="utf-8")
    for wrong in (("--url", "sqlite:///nowhere.db"), ("--url", "nonsense://"), ("-A", "loud:jobs")):
        assert completed(*wrong, "jobs", "list", "queue:") == []
        assert completed("queues", "pause", *wrong, "") == []
    assert capfd.readouterr() == ("", "")

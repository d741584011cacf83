"""What shells get, run by the shells that are installed."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from click.testing import CliRunner

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

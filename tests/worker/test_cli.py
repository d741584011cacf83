"""The `stoker` command."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stoker.cli import COMMANDS
from stoker.cli.command import stoker
from stoker.cli.text import one_line, safe
from stoker.model.job import Status
from stoker.supervisor.health import HealthFile
from tests.worker.shell import APP, ROOT, Deployment

BAR = "━.*?%d of 6".encode()


def call(*arguments: str) -> Result:
    return CliRunner().invoke(stoker, arguments, prog_name="stoker")


@pytest.mark.spec("CLI-01")
def test_help_lists_every_command_and_imports_none() -> None:
    code = "import sys; sys.argv = ['stoker', '--help']; from stoker.cli import main\n"
    code += "try: main()\nexcept SystemExit: print([m for m in sys.modules if m.startswith(('stoker.cli.', 'rich'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.endswith("['stoker.cli.command']\n"), "the group holds no command"
    for name, (_, line) in COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert line in done.stdout


def test_every_command_exists_and_explains_itself() -> None:
    for name in COMMANDS:
        done = call(name, "--help")
        assert done.exit_code == 0
        assert done.output.startswith(f"Usage: stoker {name}")
    assert call("--version").output.startswith("stoker")


@pytest.mark.spec("CLI-02")
@pytest.mark.parametrize(
    "app, told",
    [
        ("no_such_module:jobs", "no module 'no_such_module'"),
        ("tests.worker.apps.risky:nothing", "tests.worker.apps.risky:jobs"),
        ("tests.worker.apps.risky:HOME", "has no 'HOME'"),
        ("tests.worker.apps.risky:Point.x", "holds tests.worker.apps.risky:jobs"),
        (
            "tests.worker.apps.risky:surrounded",
            "not a Stoker; tests.worker.apps.risky holds tests.worker.apps.risky:jobs",
        ),
        ("tests.worker.shell", "holds no Stoker at all"),
        ("./shop/app.py:jobs", "name the module, not its file: shop.app:jobs"),
        ("/srv/app.py:jobs", "name the module, not its file: app:jobs"),
        ("app.py", "name the module, not its file: app\n"),
        (".app:jobs", "no module '.app'"),
        (":jobs", "app:jobs"),
        ("tests.worker.apps.risky:", "app:jobs"),
    ],
)
def test_a_bad_app_path_says_what_to_do(app: str, told: str) -> None:
    done = call("work", app)
    assert done.exit_code == 1
    assert told in done.output


@pytest.mark.spec("CLI-02")
def test_an_app_that_cannot_be_imported_shows_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faulty_app.py").write_text("import this_is_missing_for_sure\n")
    monkeypatch.syspath_prepend(tmp_path)
    done = call("work", "faulty_app:jobs")
    assert done.exit_code == 1
    assert "No module named 'this_is_missing_for_sure'" in done.output
    assert "faulty_app.py" in done.output


@pytest.mark.spec("CLI-03")
@pytest.mark.parametrize(
    "arguments",
    [
        ("-q", "mail:many"),
        ("--strict", "--weighted"),
        ("-q", "mail:0"),
        ("-q", "mail:99999999"),
        ("-q", "mail:\u00b2"),
        ("--lease", "soon"),
        ("--lease", "1ms"),
        ("--processes", "0"),
        ("--log-format", "xml"),
        ("--processes", "2"),
        ("--health-file", "somewhere"),
        ("--unheard-of",),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    done = call("work", "tests.worker.apps.risky:jobs", *arguments)
    assert done.exit_code == 2
    assert "Error: " in done.output


@pytest.mark.spec("CLI-03")
@pytest.mark.parametrize("place", ["nowhere/ready", "taken"])
def test_a_health_file_that_cannot_be_made_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "small_app.py").write_text(f"from stoker import Stoker\njobs = Stoker('sqlite:///{tmp_path}/j.db')\n")
    monkeypatch.syspath_prepend(tmp_path)
    done = call("work", "small_app:jobs", "--health-file", str(tmp_path / place))
    assert done.exit_code == 2
    assert re.search(r"Error: the health file: .*(does not exist|something else)", done.output)


@pytest.mark.spec("CLI-03")
def test_a_bad_environment_variable_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tuned_app.py").write_text("from stoker import Stoker\njobs = Stoker('memory://')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("STOKER_EVENT_BUFFER", "none")
    done = call("work", "tuned_app:jobs")
    assert done.exit_code == 2
    assert "the environment variable STOKER_EVENT_BUFFER: must be a whole number" in done.output
    assert "Traceback" not in done.output


@pytest.mark.spec("CLI-32")
@pytest.mark.parametrize("user", [0, 1000])
def test_work_as_root_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, user: int
) -> None:
    (tmp_path / "idle_app.py").write_text("from stoker import Stoker\njobs = Stoker('memory://')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    done = call("work", "idle_app:jobs", "--processes", "2")
    assert done.exit_code == 2
    assert ("runs as root" in done.output + caplog.text) == (user == 0)


@pytest.mark.spec("PROCESS-15")
def test_a_program_started_by_a_handler_does_not_inherit_the_workers_socket() -> None:
    script = (
        "import os, signal, sys; descriptor = int(sys.argv[3]); from stoker.subprocesses import Parent; "
        "before = os.get_inheritable(descriptor); parent = Parent(signal.SIGTERM); "
        "print(before, os.get_inheritable(descriptor))"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", script, "path", "module", str(theirs.fileno()), str(os.getpid())]
        done = subprocess.run(
            command, pass_fds=[theirs.fileno()], capture_output=True, text=True, check=True, cwd=ROOT, timeout=120
        )
    assert done.stdout == "True False\n"


@pytest.mark.spec("SUPERVISOR-30")
def test_the_health_file_follows_no_link(tmp_path: Path) -> None:
    victim, ready = tmp_path / "victim", tmp_path / "ready"
    victim.write_text("precious")
    ready.symlink_to(victim)
    scratch = tmp_path / f"ready.{os.getpid()}"
    scratch.symlink_to(victim)
    file = HealthFile(ready)
    file.show(ready=True, now=1.0)
    assert not ready.is_symlink()
    assert ready.read_text() == f"{os.getpid()}\n"
    assert not scratch.is_symlink()
    ready.unlink()
    ready.symlink_to(tmp_path / "nothing")
    file.show(ready=False, now=2.0)
    assert not os.path.lexists(ready)
    assert victim.read_text() == "precious"


@pytest.mark.parallel_deployment
@pytest.mark.spec("CLI-04")
def test_drain_works_off_what_is_due_and_exits_with_0(deployment: Deployment) -> None:
    deployment.enqueue("quick", *({"n": n} for n in range(30)))
    deployment.enqueue("shout", {})
    with deployment.work("--drain", "-p", "2", "--log-format", "json", "-q", "default", ready=False) as command:
        assert command.wait() == 0
        lines = [json.loads(line) for line in command.log.splitlines()]
    assert {job.status for job in deployment.records()} == {Status.DONE}
    assert len(deployment.marks()) == 30
    [said] = [line for line in lines if line["logger"] == "stoker.job"]
    assert said["message"] == "red \x1b[31m alert\nstoker.worker: forged line"
    assert (said["kind"], said["attempt"], said["level"]) == ("shout", 1, "WARNING")
    assert not deployment.ready_file.exists()


@pytest.mark.parallel_deployment
@pytest.mark.spec("CLI-08")
def test_the_order_of_queues_can_be_chosen(deployment: Deployment) -> None:
    late = deployment.enqueue("quick", *({"n": n} for n in range(5)), queue="low")
    early = deployment.enqueue("quick", *({"n": n} for n in range(5)), queue="high")
    with deployment.work("--drain", "--strict", "-q", "high:1,low:1", ready=False, STOKER_CLAIM_BATCH="1") as command:
        assert command.wait() == 0
    assert [mark.job for mark in deployment.marks()] == [*early, *late]
    deployment.enqueue("quick", {"n": 1}, queue="low")
    with deployment.work("--drain", "--weighted", "-q", "high:5,low:1", ready=False) as command:
        assert command.wait() == 0
    assert {job.status for job in deployment.records()} == {Status.DONE}


@pytest.mark.parallel_deployment
@pytest.mark.spec("CLI-05")
def test_plain_logs_cannot_be_forged(deployment: Deployment) -> None:
    deployment.enqueue("shout", {})
    with deployment.command("-m", "stoker", "work", APP, "--drain") as command:
        assert command.wait() == 0
        assert "red \\x1b[31m alert\n    stoker.worker: forged line" in command.log
        assert "\x1b" not in command.log


@pytest.mark.parallel_deployment
@pytest.mark.spec("CLI-06")
def test_a_terminal_shows_counters_and_while_draining_a_bar(deployment: Deployment) -> None:
    import pty

    flags = {done: deployment.folder / f"after-{done}" for done in (2, 4)}
    deployment.enqueue("nap", {"seconds": 0}, {"seconds": 0})
    deployment.enqueue("rest", *({"flag": str(flag)} for flag in flags.values() for _ in range(2)))
    deployment.enqueue("nap", {"seconds": 0}, delay=3600)  # not due, so the bar does not count it
    main, end = pty.openpty()
    command = [sys.executable, "-m", "stoker", "work", APP, "--drain", "-q", "default:2"]
    environ = {**deployment.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, stdin=end, stdout=end, stderr=end, cwd=ROOT, env=environ) as process:
        os.close(end)
        shown = b""
        try:
            while piece := os.read(main, 4096):
                shown += piece
                for done, flag in flags.items():
                    if re.search(BAR % done, shown):
                        flag.touch()
        except OSError:  # Linux says so when the other end is closed
            pass
        assert process.wait(60) == 0
    os.close(main)
    text = shown.decode()
    last = re.sub(r"\x1b\[[\d;]*\w", "", text.rstrip().splitlines()[-1])
    assert last == "drained: 6 done"
    assert all(re.search(BAR % done, shown) for done in flags), "a bar that grows"
    assert "started on sqlite" in text, "log lines stand above"


def test_memory_runs_in_the_same_process() -> None:
    code = "import sys; sys.argv = ['stoker', 'work', 'tests.worker.apps.risky:jobs', '--drain']\n"
    code += "from stoker.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, timeout=90, check=False)
    assert done.returncode == 0, done.stderr


def test_text_from_jobs_is_made_visible() -> None:
    assert safe("a\x1b[31mb\x07\x9b\u202ec\td\n") == "a\\x1b[31mb\\x07\\x9b\\u202ec\td\n"
    assert one_line("a\r\nb\x00" + "c" * 500, 20) == "a\\x0d b\\x00" + "c" * 8 + "…"

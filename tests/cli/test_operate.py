"""`stoker jobs`, `queues`, `workers` and `status`, as an operator types them."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import pty
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from stoker.admin import documents
from stoker.app import Stoker
from stoker.cli import ALIASES, COMMANDS, operations
from stoker.cli.command import stoker
from stoker.cli.text import say
from stoker.context import current
from stoker.limits import Limit
from stoker.model import findings, ids
from stoker.model.job import FIRST, Demand
from stoker.model.operations import Operation
from stoker.model.throttle import Rate
from tests.harness.apps import PATIENCE, drain, working

UNKNOWN = "0193b0f0-0000-7000-8000-000000000001"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with two dead jobs, one done and one scheduled."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("STOKER_URL", url)
    monkeypatch.delenv("STOKER_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    app = Stoker(url)

    @app.task(queue="mail", attempts=1)
    async def send(to: str) -> str:
        if to == "nowhere":
            raise ValueError("no such address\x1b[2J")
        return to

    async def fill() -> None:
        async with app:
            for to in ("nowhere", "ada", "nowhere"):
                await send.enqueue(to)
            await drain(app)
            await send.using(delay=3600).enqueue("later")

    app.run(fill())
    return url


def call(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(stoker, list(words))
    assert done.exit_code == code, done.output
    return done


def rows(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in call(*words, "--json").stdout.splitlines()]


@pytest.mark.spec("CLI-11", "FILTER-12")
def test_jobs_are_listed_as_a_table_or_as_json(url: str) -> None:
    lines = call("jobs", "list", "is:dead").stdout.splitlines()
    assert lines[0].split("\t") == ["id", "status", "queue", "kind", "attempts", "created", "error"]
    assert len(lines) == 3
    assert "no such address" in lines[1]
    assert "\x1b" not in "".join(lines), "nothing that moves the cursor"
    assert [job["payload"]["to"] for job in rows("jobs", "list", "order:oldest", "--limit", "2")] == ["nowhere", "ada"]
    assert len(call("jobs", "list").stdout.splitlines()) == 5
    app = Stoker(url)
    app.declare("send")
    tagged = app.enqueue_sync(app.draft("send", metadata={"customer": "4 2", "a=b": "5"}))
    for words in (('meta:customer="4 2"',), ("is:active", 'meta:"a=b"=5')):
        assert [job["id"] for job in rows("jobs", "list", *words)] == [tagged.id]
    app.run(app.close())


@pytest.mark.spec("LABEL-01")
def test_labels_stand_behind_the_kind(url: str) -> None:
    app = Stoker(url)
    app.declare("send", label="to {to}")
    job = app.enqueue_sync(app.draft("send", {"to": "ada"}))
    app.run(app.close())
    head, first, *_ = call("jobs", "list").stdout.splitlines()
    assert head.split("\t")[3:5] == ["kind", "label"]
    assert first.split("\t")[3:5] == ["send", "to ada"]
    assert "label: to ada" in call("jobs", "show", job.id).stdout
    assert "label" not in call("jobs", "list", "is:dead").stdout


@pytest.mark.spec("CLI-12")
def test_a_dead_job_is_shown_explained_and_requeued(url: str) -> None:
    [job, _] = [row["id"] for row in rows("jobs", "list", "is:dead")]
    shown = call("jobs", "show", job).stdout
    assert "ValueError: no such address" in shown
    assert "status: dead" in shown
    place = f"on {socket.gethostname()} / {os.getpid()}"
    assert re.search(rf"^  .* attempt 1 {re.escape(place)}.*: ValueError: no such address", shown, re.MULTILINE)
    assert re.search(rf"^origin: {re.escape(place)}.*, worker [0-9a-f]+$", shown, re.MULTILINE)
    assert place in call("jobs", "explain", job).stdout
    assert call("jobs", "explain", job).stdout.startswith("finished: it is dead: ValueError: no such address")
    [gates] = [json.loads(call("jobs", "explain", job, "--json").stdout)["gates"]]
    assert gates[0]["reason"] == "finished"
    assert call("jobs", "requeue", job).stdout == "requeue: 1 job\n"
    for verb in ("requeue", "run-now"):
        assert call("jobs", verb, job).stdout == f"{verb}: the job waits or runs already; nothing was changed\n"
    found = call("jobs", "explain", job).stdout
    assert found.startswith("no_worker: no worker serves queue 'mail'")
    assert "stoker work" in found


def no_yes(*words: str) -> str:
    return " ".join(call("jobs", *words, code=2).output.replace("│", " ").split())


@pytest.mark.spec("CLI-70")
def test_an_action_asks_above_a_hundred_jobs_and_a_deletion_always(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = json.loads(call("jobs", "list", "is:dead", "--json").stdout.splitlines()[0])["id"]
    assert f"delete job {job}? Nothing was changed: there is no terminal to ask on; say --yes" in no_yes("delete", job)
    assert call("jobs", "show", job).stdout
    assert call("jobs", "delete", job, "--yes").stdout == "delete: 1 job\n"
    assert call("jobs", "discard", "is:dead").stdout == "discard: 1 job\n"  # one needs no question
    monkeypatch.setattr("stoker.cli.jobs.ASKS_ABOVE", 0)
    for words in (("requeue", "is:discarded"), ("cancel", "is:scheduled"), ("run-now", "is:scheduled")):
        assert f"{words[0]} 1 job of {words[1]}? Nothing was changed" in no_yes(*words)
    assert call("jobs", "requeue", "is:discarded", "--yes").stdout == "requeue: 1 job\n"


@pytest.mark.spec("ADMIN-46")
def test_one_job_is_run_first_by_a_command(url: str) -> None:
    job = json.loads(call("jobs", "list", "is:scheduled", "--json").stdout)["id"]
    assert call("jobs", "run-now", job, "--first").stdout == "run-now: 1 job\n"
    assert json.loads(call("jobs", "show", job, "--json").stdout)["priority"] == FIRST
    assert "goes with the id of one job" in no_yes("run-now", "is:ready", "--first")


@pytest.mark.spec("CLI-13")
def test_an_action_over_a_filter_counts_first(url: str) -> None:
    assert call("jobs", "requeue", "is:dead", "--dry-run").stdout == "2 jobs match is:dead. Nothing was changed.\n"
    assert "delete 2 jobs of is:dead? Nothing was changed: there is no terminal to ask on; say --yes" in no_yes(
        "delete", "is:dead"
    )
    counted = json.loads(call("jobs", "delete", "is:dead", "--dry-run", "--json").stdout)
    done = json.loads(call("jobs", "delete", "is:dead", "--yes", "--json").stdout)
    assert (counted["matching"], done["changed"], done["total"], done["later"]) == (2, 2, 2, 0)
    assert counted["counted_at"] < done["counted_at"]
    assert call("jobs", "list", "is:done,scheduled", code=2).output
    tally = json.loads(call("jobs", "cancel", "is:scheduled", "--yes", "--reason", "no", "--json").stdout)
    assert (tally["changed"], tally["refused"]) == (1, {})
    assert call("jobs", "retry", "is:canceled").stdout == "retry: 0 jobs; 1 left: canceled\n"


@pytest.mark.spec("CLI-14")
@pytest.mark.parametrize(
    "words, code, says",
    [
        (["jobs", "show", UNKNOWN], 3, "is not in the store"),
        (["jobs", "show", "seven"], 2, "a UUID, or its first eight digits or more; got 'seven'."),
        (["jobs", "list", "is:daed"], 2, "Did you mean dead?"),
        (["jobs", "list", "same_error:err_000"], 2, "the name of an error, as in same_error:err_9f1a02c3d4e5"),
        (["jobs", "list", "same_error:err_000000000000"], 0, "No job that is kept has failed with error err_0000"),
        (["jobs", "list", "is:dead -kind:sned"], 2, "Did you mean send?; got '-kind:sned'. Nothing was done."),
        (["jobs", "delete", "kind:sned", "--yes"], 2, "Did you mean send?; got 'kind:sned'. Nothing was done."),
        (["jobs", "delete", "kind:sned", "--dry-run"], 2, "Did you mean send?"),
        (["queues", "purge", "maill", "--older-than", "1s"], 2, "Did you mean mail?"),
        (["queues", "purge", "m*", "--older-than", "1s"], 2, "must be 1-128 of letters"),
        (["jobs", "delete", "status:dead"], 2, "order, id; put other text in quotes; got 'status:'"),
        (["queues", "show", "maill"], 3, "Did you mean mail?"),
        (["queues", "tune", "mail"], 2, "name at least one setting"),
        (["queues", "tune", "mail", "--rate", "fast"], 2, "as in 100/1m"),
        (["queues", "tune", "mail", "--rate", "9/fortnight"], 2, "one of the units"),
        (["queues", "tune", "mail", "--keep-done", "soon"], 2, "one of the units"),
        (["queues", "tune", "mail", "--curve", "5s"], 2, "as in 5s..10m"),
        (["queues", "tune", "mail", "--curve", "5..1"], 2, "must not begin with a longer wait than it ends with"),
        (["queues", "pause", "mail", "--for", "0s"], 2, "must end in the future"),
        (["top"], 2, "top needs a terminal"),
        (["work", "app:jobs", "-q", "bad queue"], 2, "'bad queue' must be 1-128 of letters"),
        (["work", "app:jobs", "--grace", "soon"], 2, "Invalid value for --grace: 'soon' must be seconds"),
    ],
)
def test_mistakes_have_exit_codes_and_a_sentence(url: str, words: list[str], code: int, says: str) -> None:
    assert says in call(*words, code=code).output


@pytest.mark.spec("CLI-57")
def test_reading_an_unknown_name_is_empty_with_a_hint(url: str) -> None:
    said = "note: kind:sned matches no kind that is known. Did you mean send?\n"
    assert call("jobs", "list", "kind:sned").stderr == said
    assert call("jobs", "list", "kind:sned", "--json").stdout == ""
    counted = call("jobs", "list", "kind:sned", "--count")
    assert (counted.stdout, counted.stderr) == ("0\n", said)
    call("queues", "tune", "idle", "--workers", "3", "--create")
    for words in (["list", "queue:idle", "--count"], ["delete", "queue:idle", "--yes"]):
        empty = call("jobs", *words)
        assert (empty.stderr, empty.stdout[0]) == ("", "0")
    assert call("jobs", "list", "--count").stdout == "4\n"


@pytest.mark.spec("CLI-14")
def test_a_refusal_by_status_has_its_own_exit_code(url: str) -> None:
    [job] = [row["id"] for row in rows("jobs", "list", "is:done")]
    assert "is done, which 'requeue' does not apply to" in call("jobs", "requeue", job, code=4).output


@pytest.mark.spec("CLI-44")
def test_what_a_store_warns_of_is_no_line_of_every_command(url: str) -> None:
    """A real process: standard error is empty, whatever the store's version."""
    command = [sys.executable, "-m", "stoker", "jobs", "list", "is:dead"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stderr, len(done.stdout.splitlines())) == ("", 3)


@pytest.mark.spec("CLI-45")
@pytest.mark.parametrize(
    "words",
    [
        ("queues", "pause", "maill"),
        ("queues", "tune", "maill", "--workers", "3"),
        ("limits", "set", "maill", "call", "3"),
        ("limits", "tune", "mailler", "--rate", "5/1m"),
        ("jobs", "move", "queue:mail", "--to", "maill"),
    ],
)
def test_a_name_that_is_not_known_is_changed_only_with_create(url: str, words: tuple[str, ...]) -> None:
    """It may be a typing error, or come ahead of the first job."""
    call("limits", "tune", "mailer", "--rate", "9/1m", "--create")
    refused = call(*words, code=3)
    near = "mailer" if "mailler" in words else "mail"
    assert f"Did you mean {near}? Nothing was changed. With create=True, --create on" in refused.stderr
    assert [one["name"] for one in (*rows("queues", "list"), *rows("limits", "list"))] == ["mail", "mailer"]
    assert call(*words, "--create").stderr == ""
    assert call(*words).stderr == "", "it is known from then on"


@pytest.mark.spec("CLI-45")
@pytest.mark.parametrize("words", [("queues", "resume"), ("queues", "reopen"), ("limits", "clear", "maill", "call")])
def test_what_only_ends_something_creates_nothing(url: str, words: tuple[str, ...]) -> None:
    name = () if "maill" in words else ("maill",)
    assert call(*words, *name, code=3).stderr.endswith("Did you mean mail? Nothing was changed.\n")
    for reading in ("keys", "full"):
        assert call("limits", reading, "maill").stderr.endswith("Did you mean mail?\n")
    assert [one["name"] for one in rows("queues", "list")] == ["mail"]


@pytest.mark.spec("CLI-63")
def test_a_mistyped_task_is_not_found_and_the_nearest_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("typed.py").write_text(
        f"from stoker import Stoker\njobs = Stoker({url!r})\n@jobs.task\ndef charge() -> None: ...\n"
    )
    monkeypatch.syspath_prepend(".")
    refused = call("enqueue", "chrage", "--app", "typed:jobs", code=3)
    assert refused.stderr.startswith("Error: task 'chrage' is neither registered nor declared")
    assert "Did you mean charge? Nothing was stored." in refused.stderr


@pytest.mark.spec("CLI-46")
def test_changes_are_signed_without_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under cron, which sets no USER."""
    for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    call("queues", "pause", "mail")
    assert f"\t{getpass.getuser()}\t" in call("audit").stdout


@pytest.mark.spec("CLI-15")
def test_queues_are_paused_tuned_and_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "ada")
    [mail] = rows("queues", "list")
    assert (mail["name"], mail["dead"], mail["scheduled"], mail["paused"]) == ("mail", 2, 1, False)
    call("queues", "pause", "mail", "--for", "30m", "--reason", "a migration")
    call("queues", "tune", "mail", "--rate", "100/1m", "--workers", "3", "--keep-done", "2d", "--curve", "5s..10m")
    shown = call("queues", "show", "mail").stdout
    for text in (
        "paused by ada (a migration), ends in 29 min",
        "at most 3 at once",
        "at most 100 per minute",
        "kept: 2 days",
    ):
        assert text in shown
    assert "waits before retries: 5.0 s, doubled each time, up to 10 min" in shown
    call("queues", "resume", "mail")
    call("queues", "tune", "mail", "--clear", "rate", "--clear", "workers", "--clear", "curve")
    shown = call("queues", "show", "mail").stdout
    assert "state: open" in shown
    assert "waits before retries" not in shown


@pytest.mark.spec("CLI-16")
def test_the_status_names_what_needs_attention(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "WAL-reset" not in (calm := call("status").stdout)
    assert calm.splitlines()[-1] != ""
    assert "note: 2 jobs died in the last hour" in call("status", "--check").stdout, "a line, not a finding"
    call("jobs", "requeue", "is:dead")
    found = call("status", "--check").stdout
    assert "note: No worker has been at work for" in found, "one may be replaced"
    assert "died" not in found
    monkeypatch.setattr(findings, "ALONE_AFTER", 0)
    bad = call("status", "--check", code=1).stdout
    assert "wrong: No worker has been at work for" in bad
    assert "2 due jobs wait for one." in bad
    assert call("status", "--quiet").stdout.startswith("wrong: No worker")
    found = json.loads(call("status", "--json").stdout)
    assert all(isinstance(one["keep_done"], float) for one in found["queues"])  # seconds, as REST has it
    assert [(kind["kind"], kind["failed"]) for kind in found["kinds"]] == [("send", 2)]
    assert call("workers").stdout.splitlines()[0].startswith("worker\thost")


@pytest.mark.spec("NEED-18")
def test_rates_that_are_not_counted_yet_are_a_dash(url: str) -> None:
    head, row = (line.split("\t") for line in call("queues", "list").stdout.splitlines())
    assert [row[head.index(name)] for name in ("in/min", "out/min")] == ["–", "–"]


@pytest.mark.spec("EXPLAIN-08")
def test_an_action_says_that_the_queue_is_paused(url: str) -> None:
    call("queues", "pause", "mail")
    bulk = call("jobs", "requeue", "is:dead")
    assert "note: Queue mail is paused: its jobs wait until it is resumed." in bulk.stderr
    one = json.loads(call("jobs", "list", "is:scheduled", "--json").stdout.splitlines()[0])["id"]
    assert "note: It still waits: queue 'mail' is paused by " in call("jobs", "run-now", one).stderr
    call("queues", "resume", "mail")
    assert "paused" not in call("jobs", "run-now", "is:ready").stderr


@pytest.mark.spec("CLI-17")
def test_the_store_is_named_in_one_of_five_ways(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_URL")
    assert "which store?" in call("jobs", "list", code=2).output
    assert len(call("jobs", "list", "--url", url).stdout.splitlines()) == 5
    (tmp_path / "operated_app.py").write_text(f"from stoker import Stoker\njobs = Stoker({url!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert len(call("jobs", "list", "--app", "operated_app:jobs").stdout.splitlines()) == 5
    (tmp_path / "pyproject.toml").write_text('[tool.stoker]\napp = "operated_app:jobs"\n')
    assert len(call("jobs", "list").stdout.splitlines()) == 5
    (tmp_path / "pyproject.toml").write_text("[tool")
    assert "which store?" in call("jobs", "list", code=2).output
    monkeypatch.setenv("STOKER_APP", "operated_app:jobs")
    assert len(call("jobs", "list").stdout.splitlines()) == 5


@pytest.mark.spec("NEED-19")
def test_remedies_name_the_app_that_the_command_was_given(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"from stoker import Stoker\nstore = Stoker({url!r})\n@store.task\nasync def sell() -> None: ...\n"
    (tmp_path / "corner_shop.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    job = call("enqueue", "sell", "-A", "corner_shop:store").stdout.strip()
    for words in (["status"], ["doctor"]):
        done = CliRunner().invoke(stoker, [*words, "-A", "corner_shop:store"])
        assert "stoker work corner_shop:store" in done.stdout, done.output
        assert "app:jobs" not in done.stdout
    assert "`stoker work corner_shop:store -q default`" in call("explain", job, "-A", "corner_shop:store").stdout
    assert "Run `stoker work app:jobs`." in call("status").stdout, "a URL alone names no app"


@pytest.mark.spec("CLI-18")
def test_a_mistyped_file_is_not_created(tmp_path: Path) -> None:
    missing = tmp_path / "jbos.db"
    assert "there is no store" in call("jobs", "list", "--url", f"sqlite:///{missing}", code=1).output
    assert not missing.exists()


@pytest.mark.spec("ADMIN-24")
def test_an_admin_of_the_users_own_is_used_as_it_is(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        "from stoker import Stoker",
        "from stoker.admin import Admin",
        f"jobs = Stoker({url!r})",
        "admin = Admin(jobs, redact=None)",
        "admin.queues.list = lambda: nothing()",
        "async def nothing(): return []",
        "class Half: app = jobs",
        "half = Half()",
    )
    (tmp_path / "own_admin.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    assert len(call("queues", "list", "--app", "own_admin:admin").stdout.splitlines()) == 1
    assert len(call("queues", "list", "--app", "own_admin:jobs").stdout.splitlines()) == 2
    assert "history, jobs" in call("queues", "list", "--app", "own_admin:half", code=1).output


@pytest.mark.spec("CLI-20")
@pytest.mark.parametrize(
    "words, stands_for",
    [
        (["list"], ["jobs", "list"]),
        (["dead"], ["jobs", "list", "is:dead"]),
        (["tasks"], ["kinds"]),
        (["cron", "list"], ["schedules", "list"]),
        (["requeue", "is:dead", "--dry-run"], ["jobs", "requeue", "is:dead", "--dry-run"]),
    ],
)
def test_what_people_type_by_instinct_is_understood(url: str, words: list[str], stands_for: list[str]) -> None:
    said, meant = (re.sub(r"\d+ s ago", "now", call(*one).stdout) for one in (words, stands_for))
    assert said == meant


@pytest.mark.spec("CLI-20")
@pytest.mark.parametrize(
    "words, says",
    [
        (["quues"], "Did you mean 'queues'?"),
        (["jobs", "lst"], "Did you mean 'list'?"),
        (["xyzzy"], "`stoker --help` lists them"),
        (["schedules", "nxt"], "Did you mean 'next'?"),
    ],
)
def test_an_unknown_command_names_the_nearest(words: list[str], says: str) -> None:
    done = CliRunner().invoke(stoker, words, prog_name="stoker")
    assert done.exit_code == 2
    assert says in done.output


@pytest.mark.spec("CLI-61")
@pytest.mark.parametrize("words", [("delete", "--yes"), ("requeue",), ("cancel", "-y"), ("move", "--to", "mail")])
@pytest.mark.parametrize("empty", [("",), (" ", "")])
def test_an_action_over_an_empty_filter_is_refused(url: str, words: tuple[str, ...], empty: tuple[str, ...]) -> None:
    before = call("jobs", "list", "--json").stdout
    assert "the filter is empty" in call("jobs", *words, *empty, code=2).output
    assert call("jobs", "list", "--json").stdout == before


@pytest.mark.spec("CLI-20")
def test_every_other_name_leads_to_a_command() -> None:
    for name, words in ALIASES.items():
        assert name not in COMMANDS
        assert words[0] in COMMANDS
    assert "Also understood: list, show" in call("--help").stdout


@pytest.mark.spec("CLI-21")
def test_a_job_is_enqueued_from_a_shell(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = call("enqueue", "send", '{"to": "ada"}', "-q", "mail", "--delay", "10m", "--key", "k").stdout.strip()
    shown = json.loads(call("show", job, "--json").stdout)
    assert (shown["payload"], shown["queue"], shown["view"], shown["unique"]["key"]) == (
        {"to": "ada"},
        "mail",
        "scheduled",
        "k",
    )
    entry = rows("audit", "--action", "jobs.enqueue")[0]
    assert (entry["target"], entry["after"]["queue"]) == (f"job {job}", "mail")
    again = json.loads(call("enqueue", "send", "-q", "mail", "--key", "k", "--json").stdout)
    assert again == {"job": job, "stored": "existing"}
    then = json.loads(call("show", call("enqueue", "send", "--at", "2099-01-02T03:04").stdout.strip(), "--json").stdout)
    assert then["scheduled_at"].startswith("2099-01-02T03:04:00")
    assert "Nothing was stored" in call("enqueue", "send", "{to}", code=2).output
    mistyped = call("enqueue", "send", "-q", "maill", code=3).output
    assert "Did you mean mail? Nothing was changed. With create=True, --create" in mistyped
    assert call("enqueue", "send", "-q", "bulk", "--create").stdout.strip()
    assert "Did you mean mail?" in call("tokens", "create", "ci", "--queue", "maill", code=3).output
    assert call("tokens", "create", "ci", "--queue", "soon", "--create").stdout.startswith("stk_")
    assert "limit 'api' of queue 'mail' is not known" in call("limits", "set", "mail", "api", "2", code=3).output
    assert "is not known" in call("limits", "clear", "mail", "api", code=3).output
    call("limits", "set", "mail", "api", "2", "--create")
    call("limits", "clear", "mail", "api")
    (tmp_path / "strict_app.py").write_text(
        f"from stoker import Stoker\njobs = Stoker({url!r})\n@jobs.task\nasync def send(to: str) -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "'sned' is neither registered" in call("enqueue", "sned", "--app", "strict_app:jobs", code=3).output


@pytest.mark.spec("CLI-22")
def test_events_are_followed(url: str) -> None:
    tail = subprocess.Popen(
        [sys.executable, "-m", "stoker", "tail", "queue:mail", "--limit", "2", "--url", url],
        stdout=subprocess.PIPE,
        text=True,
    )
    app = Stoker(url)
    app.declare("send")

    async def enqueue() -> None:
        async with app:
            while tail.poll() is None:
                await app.enqueue(app.draft("send", queue="mail"))
                await asyncio.sleep(0.2)

    app.run(enqueue())
    assert tail.stdout is not None
    lines = tail.stdout.read().splitlines()
    assert [line.split("\t")[1:4] for line in lines] == [["enqueued", "mail", "send"]] * 2
    tail.stdout.close()


@pytest.mark.spec("LIMIT-44")
def test_keys_at_their_limit_are_listed(url: str) -> None:
    """Over all queues or in one; a key for which no job waits is not among them."""
    app = Stoker(url)

    @app.task(queue="calls", limit=Limit(1, key="shop"))
    async def phone(shop: str) -> None: ...

    async def fill() -> None:
        async with app:
            for shop in ("x", "x", "y"):
                await phone.enqueue(shop)
            engine = await app.engine()
            await engine.jobs.renew("w", [], first=True)
            assert len(await engine.jobs.claim(Demand("w", (("calls", 9),)))) == 2

    app.run(fill())
    for queue in ([], ["calls"]):
        [row] = rows("limits", "full", *queue)
        assert (row["queue"], row["limit"], row["key"], row["running"], row["most"]) == ("calls", "phone", "x", 1, 1)
    assert call("limits", "full").stdout.splitlines()[1].startswith("calls\tphone/x\t1\t1\tyes\t")
    assert rows("limits", "full", "mail") == []


async def _metered(app: Stoker) -> None:
    async with app:
        app.budget("llm", requests=Rate(5, per=3600), tokens=Rate(100, per=3600), keyed=True)
        await app.declarations.store(await app.engine())
        assert await app.spend("llm", requests=1, tokens=40, key="acme\x1b[2J")


@pytest.mark.spec("CLI-23", "BUDGET-25")
def test_limits_kinds_and_operations_are_shown_and_changed(url: str) -> None:
    call("limits", "tune", "mailer", "--rate", "60/min", "--create")
    [budget] = rows("limits", "list")
    assert (budget["name"], budget["capacity"]) == ("mailer", 60)
    assert call("limits", "drain", "mailer").stdout == "budget mailer is drained\n"
    assert call("limits", "list").stdout.splitlines()[1].startswith("mailer\t0.")
    assert "not in the store" in call("limits", "drain", "posts", code=3).output
    app = Stoker(url)
    app.run(_metered(app))
    assert [line.split("\t")[0] for line in call("limits", "list").stdout.splitlines()[1:]] == [
        "llm/requests (each key)",
        "llm/tokens (each key)",
        "mailer",
    ]
    [requests, tokens] = rows("limits", "buckets", "llm")
    assert (tokens["key"], tokens["measure"], int(tokens["tokens"])) == ("acme\x1b[2J", "tokens", 60)
    assert requests["measure"] == "requests"
    assert call("limits", "buckets", "llm").stdout.splitlines()[2].startswith("acme\\x1b[2J\ttokens\t60.")
    assert rows("limits", "buckets", "llm", "--key", "none")[1]["tokens"] == 100
    assert "budget mailer: it has no keys" in call("limits", "buckets", "mailer").stderr
    tuned = call("limits", "tune", "llm", "--measure", "tokens", "--rate", "50/1h").stdout
    assert tuned == "tokens of budget llm is tuned to 50/1h\n"
    assert "requests or tokens" in call("limits", "tune", "llm", "--rate", "50/1h", code=2).output
    assert call("limits", "drain", "llm", "--key", "x").stdout == "key x of budget llm is drained\n"
    assert "has buckets for each key" in call("limits", "drain", "llm", code=2).output
    [kind] = rows("kinds")
    assert (kind["kind"], kind["completed"], kind["failed"]) == ("send", 1, 2)
    assert [one["kind"] for one in rows("kinds", "--sort", "kind")] == ["send"]
    assert (
        call("kinds")
        .stdout.splitlines()[1]
        .startswith("send\t1\t0\t0\t2\t\t\t\t\t\t\t\t0\t\t1\t2\tno\tValueError: no such address")
    )
    done = json.loads(call("jobs", "requeue", "is:dead", "--json").stdout)
    assert (done["state"], done["changed"]) == ("done", 2)
    [operation] = rows("operations", "list")
    assert (operation["id"], operation["filter"]) == (done["operation"], "is:dead")
    assert call("operations", "show", operation["id"]).stdout.splitlines() == [
        f"{operation['id']} done: requeue is:dead",
        "2 of 2 jobs",
        "requeue: 2 jobs",
    ]
    assert len(call("operations", "list").stdout.splitlines()) == 2
    assert call("operations", "stop", operation["id"]).exit_code == 0
    assert "is done, which 'resume'" in call("operations", "resume", operation["id"], code=4).output
    assert "not in the store" in call("operations", "show", "none", code=3).output


@pytest.mark.spec("CLI-77")
def test_an_operation_of_another_process_is_watched_to_its_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no operation" in call("operations", "watch", code=3).stderr
    monkeypatch.setattr("stoker.cli.operations.LOOK_AGAIN", 0.01)
    app = Stoker(url)
    put = documents.put_operation

    async def walked(state: Literal["done", "failed"]) -> str:
        """What a walk in another process writes, one page after the other."""
        async with app:
            engine = await app.engine()
            now = await engine.now()
            same: dict[str, Any] = {
                "who": "ada",
                "action": "requeue",
                "filter": "is:dead",
                "bound": now,
                "started": now,
            }
            stored = await put(engine, Operation(id=ids.text(app.mint()), total=1_000, **same))
            assert stored is not None
            watched.append(asyncio.create_task(asyncio.to_thread(call, "operations", "watch", code=state == "failed")))
            for changed in (500, 1_000):
                while f"{changed - 500:,} of 1,000 jobs" not in "".join(said):
                    await asyncio.sleep(0.01)
                after = replace(stored, changed=changed, state="running" if changed < 1_000 else state, error="away")
                stored = await put(engine, after, before=stored)
                assert stored is not None
            done = await asyncio.wait_for(watched.pop(), PATIENCE)
            return str(done.stdout)

    watched: list[asyncio.Task[Result]] = []
    said: list[str] = []

    def heard(text: str = "", **how: Any) -> None:
        said.append(text)
        say(text, **how)

    monkeypatch.setattr(operations, "say", heard)
    shown = app.run(walked("done"))
    assert "running: 0 of 1,000 jobs\n" in shown
    assert re.search(r"^running: 500 of 1,000 jobs, \S+ a second, about .* left$", shown, re.MULTILINE)
    assert shown.endswith("1,000 of 1,000 jobs\nrequeue: 1,000 jobs\naway\n")
    said.clear()
    app.run(walked("failed"))
    last = json.loads(call("operations", "watch", "--json", code=1).stdout)
    assert (last["state"], last["fates"]) == ("failed", {"changed": 1_000})


@pytest.mark.spec("CLI-90")
def test_an_acknowledged_finding_is_history_for_a_check(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call("jobs", "requeue", "is:dead")
    monkeypatch.setattr(findings, "ALONE_AFTER", -1)
    assert call("status", "--check", code=1).stdout.startswith("One thing needs you")
    head, row = (line.split("\t") for line in call("findings").stdout.splitlines())
    assert (head, row[:2]) == (["finding", "tone", "note"], ["no worker", "wrong"])
    assert "Missing option" in call("findings", "acknowledge", "no worker", code=2).output
    said = call("findings", "acknowledge", "no worker", "--reason", "a migration", "--for", "4h").stdout
    assert said == "finding no worker is acknowledged for 4h\n"
    assert (
        "at most 86400" in call("findings", "acknowledge", "no worker", "--reason", "x", "--for", "2d", code=2).stderr
    )
    calm = call("status", "--check").stdout
    assert calm.startswith("Everything keeps up\nnote: No worker")
    assert "a migration" in calm
    assert "Acknowledged by" in calm
    assert call("findings", "withdraw", "no worker").stdout == "finding no worker counts again\n"
    assert "is not acknowledged" in call("findings", "withdraw", "no worker", code=3).stderr
    call("status", "--check", code=1)


@pytest.mark.spec("CLI-24")
@pytest.mark.parametrize(
    "words",
    [
        ["queues", "pause", "mail"],
        ["queues", "resume", "mail"],
        ["queues", "tune", "mail", "--workers", "2"],
        ["limits", "tune", "mailer", "--rate", "5/s", "--create"],
        ["jobs", "requeue", "is:dead", "--dry-run"],
        ["jobs", "cancel", "is:scheduled", "--yes"],
        ["status"],
        ["queues", "show", "mail"],
    ],
)
def test_every_command_answers_with_an_object(url: str, words: list[str]) -> None:
    assert isinstance(json.loads(call(*words, "--json").stdout), dict)


@pytest.mark.spec("CLI-25")
def test_a_purge_counts_and_asks(url: str) -> None:
    counted = call("queues", "purge", "mail", "--status", "dead", "--older-than", "0s", "--dry-run").stdout
    assert counted == "2 dead jobs of queue mail ended over 0s ago. Nothing was removed.\n"
    assert "say --yes" in call("queues", "purge", "--older-than", "0s", code=2).output
    assert call("queues", "purge", "--older-than", "0s", "--yes").stdout == "removed 1 done job of all queues\n"
    assert json.loads(call("queues", "purge", "mail", "--older-than", "1d", "--json").stdout)["removed"] == 0


@pytest.mark.spec("CLI-13", "CLI-25")
@pytest.mark.parametrize(
    "words",
    [["jobs", "delete", "is:dead"], ["queues", "purge", "mail", "--status", "dead", "--older-than", "0s"]],
    ids=["jobs delete", "queues purge"],
)
def test_what_ends_while_the_question_stands_is_left_alone(url: str, words: list[str]) -> None:
    """Two dead jobs were counted and shown; the third dies before the operator says yes."""
    app = Stoker(url)

    @app.task(queue="mail", attempts=1)
    async def send(to: str) -> None:
        raise ValueError(to)

    async def fail() -> None:
        async with app:
            await send.enqueue("too late")
            await drain(app)

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "stoker", *words]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        assert process.stdout is not None
        asked = ""
        while not asked.endswith("[y/N]:") and (piece := process.stdout.read(1)):
            asked += piece
        assert "2 " in asked
        app.run(fail())
        os.write(ours, b"y\n")
        process.communicate(timeout=PATIENCE)
        os.close(ours)
    assert process.returncode == 0
    assert [job["payload"]["to"] for job in rows("jobs", "list", "is:dead")] == ["too late"]


@pytest.mark.spec("CLI-26")
def test_a_job_is_edited_and_a_queue_reopened(url: str) -> None:
    [job] = [row["id"] for row in rows("jobs", "list", "is:scheduled")]
    assert (
        call("jobs", "edit", job, "--payload", '{"to": "bob"}', "--priority", "-3").stdout == f"job {job} is edited\n"
    )
    shown = json.loads(call("jobs", "show", job, "--json").stdout)
    assert (shown["payload"], shown["priority"]) == ({"to": "bob"}, -3)
    assert "name at least one" in call("jobs", "edit", job, code=2).output
    assert "is not a moment" in call("jobs", "edit", job, "--at", "soon", code=2).output
    assert "Nothing was stored" in call("jobs", "edit", job, "--payload", "{", code=2).output
    assert call("queues", "reopen", "mail").stdout == "queue mail is open\n"


@pytest.mark.spec("CLI-27")
def test_the_audit_log_says_who_changed_what(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "ada")
    call("queues", "pause", "mail", "--reason", "a migration")
    call("jobs", "requeue", "is:dead")
    assert {(one["who"], one["way"]) for one in rows("audit")} == {("ada", "command line")}
    [requeued] = rows("audit", "--action", "jobs.")
    assert (requeued["action"], requeued["count"]) == ("jobs.requeue", 2)
    lines = call("audit", "--action", "queues.").stdout.splitlines()
    assert lines[0].split("\t")[:3] == ["when", "who", "way"]
    assert "a migration" in lines[1]
    assert lines[0].split("\t")[5:7] == ["count", "change"]
    assert lines[1].split("\t")[5:7] == ["", "pause – → reason a migration, by ada"]
    call("queues", "tune", "mail", "--keep-done", "2d", "--rate", "100/1m", "--curve", "5s..10m")
    [tuned] = [one for one in rows("audit", "--action", "queues.") if "keep_done" in one["after"]]
    assert tuned["after"] == {
        "curve": {"base": 5.0, "max": 600.0},
        "keep_done": 172_800.0,
        "rate": {"n": 100.0, "per": 60.0, "burst": 100.0},
    }
    shown = call("audit", "--action", "queues.").stdout.splitlines()[1].split("\t")[6]
    assert "curve – → base 5.0 s, max 10 min; keep_done" in shown
    assert shown.endswith("→ 2 days; rate – → 100 per minute")
    call("tokens", "create", "ci")
    [_, created] = call("audit", "--action", "tokens.").stdout.splitlines()
    assert created.split("\t")[5] == "", "a token is no job"
    assert rows("audit", "--who", "bob") == []
    assert "one of the units" in call("audit", "--since", "soon", code=2).output


@pytest.mark.spec("ADMIN-32")
def test_a_discard_is_undone_by_its_entry(url: str) -> None:
    call("jobs", "discard", "is:dead", "--yes")
    [entry] = rows("audit", "--action", "jobs.discard")
    assert call("audit", "--action", "jobs.discard").stdout.splitlines()[1].split("\t")[-1] == entry["id"]
    assert call("jobs", "restore", entry["id"]).stdout == "restore: 2 jobs\n"
    assert len(rows("jobs", "list", "is:dead")) == 2
    assert call("jobs", "restore", entry["id"]).stdout == "restore: 0 jobs; 2 refused\n"
    assert "has no entry" in call("jobs", "restore", "0" * 24, code=3).output
    assert "stoker audit" in call("jobs", "restore", "that one", code=2).output


@pytest.mark.spec("ADMIN-34")
def test_jobs_are_counted(url: str) -> None:
    assert call("jobs", "list", "is:dead", "--count").stdout == "2\n"
    assert rows("jobs", "list", "error:address", "--count") == [{"jobs": 2, "complete": True}]


@pytest.mark.spec("CLI-52")
def test_a_narrow_terminal_shows_ids_that_commands_take(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [row["id"] for row in rows("jobs", "list")]
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("stoker.cli.tables.on_terminal", lambda: True)
    head, *lines = call("jobs", "list").stdout.splitlines()
    shown = [line.split()[0] for line in lines[: len(ids)]]
    assert [json.loads(call("jobs", "show", one, "--json").stdout)["id"] for one in shown] == ids
    assert all(len(line) <= 60 for line in (head, *lines))
    monkeypatch.setenv("COLUMNS", "200")
    assert [line.split()[0] for line in call("jobs", "list").stdout.splitlines()[1 : len(ids) + 1]] == ids


@pytest.mark.spec("CLI-12")
def test_errors_of_a_job_are_lines_and_its_gates_have_times(url: str) -> None:
    [dead, _] = [row["id"] for row in rows("jobs", "list", "is:dead")]
    shown = call("jobs", "show", dead).stdout
    assert re.search(r"^history:\n  \S+ attempt 1 on .*: ValueError: no such address", shown, re.MULTILINE)
    assert "token:" not in shown
    [later] = [row["id"] for row in rows("jobs", "list", "is:scheduled")]
    [gate, *_] = json.loads(call("jobs", "explain", later, "--json").stdout)["gates"]
    assert gate["until"].startswith("20")


@pytest.mark.spec("CLI-55")
def test_the_audit_log_names_jobs_by_their_ids(url: str) -> None:
    jobs = {row["id"] for row in rows("jobs", "list", "is:dead")}
    call("jobs", "discard", "is:dead", "--yes")
    [entry] = rows("audit", "--action", "jobs.discard")
    assert {one["id"] for one in entry["former"]} == jobs
    assert all(one["started_at"].startswith("20") for one in entry["former"])


@pytest.mark.spec("ADMIN-39", "CLI-54")
def test_the_jobs_of_a_live_worker_are_taken_back(url: str) -> None:
    """Its handler is stopped, the job runs again without having used an attempt, and the worker goes on."""
    app = Stoker(url)
    runs: list[str] = []
    begun = asyncio.Event()

    @app.task(queue="slow", attempts=1)
    async def wait() -> str:
        runs.append(current().worker)
        if len(runs) == 1:
            begun.set()
            await asyncio.Event().wait()
        return "done"

    async def look() -> tuple[str, Any, int]:
        async with app, working(app, {"slow": 1}, lease=6) as worker:
            job = await wait.enqueue()
            await begun.wait()
            former = worker.id
            said = await asyncio.to_thread(call, "workers", former, "--take-back", "--reason", "it hangs")
            assert said.stdout == f"1 job of worker {former} handed back\n"
            return former, await job.result(PATIENCE), (await job.refresh()).attempts

    former, result, attempts = app.run(look())
    assert (result, attempts, len(runs)) == ("done", 1, 2)
    assert runs[0] == former != runs[1]
    assert "needs the id of a worker" in call("workers", "--take-back", code=2).output
    assert "--reason belongs to --take-back" in call("workers", "--reason", "x", code=2).output
    assert "`stoker workers` lists those" in call("workers", "nobody", "--take-back", code=3).output
    app.run(app.close())


@pytest.mark.spec("CLI-54")
def test_a_worker_shows_what_it_runs(url: str) -> None:
    app = Stoker(url)
    begun, end = asyncio.Event(), asyncio.Event()

    @app.task(queue="slow")
    async def wait() -> None:
        begun.set()
        await end.wait()

    async def look() -> tuple[str, str, list[dict[str, Any]]]:
        async with app, working(app, {"slow": 1}) as worker:
            job = await wait.enqueue()
            await begun.wait()
            found = await asyncio.to_thread(rows, "workers", worker.id)
            end.set()
            return job.id, worker.id, found

    job, worker, [found] = app.run(look())
    assert (found["id"], found["worker"], found["status"], found["long"]) == (job, worker, "running", False)
    assert "`stoker workers` lists those" in call("workers", "nobody", code=3).output
    facts, served, hour, empty, head = call("workers", worker).stdout.splitlines()
    assert (" is stopped; up for " in facts, served.startswith("serves "), " ended in the last " in hour) == (True,) * 3
    assert (empty, head) == ("", "id\tkind\tqueue\tstarted\tnote")


@pytest.mark.spec("CLI-67")
@pytest.mark.parametrize("words", [["jobs", "list"], ["jobs"], ["jobs", "cancel", "--yes"], ["jobs", "tail"]])
def test_an_app_in_the_place_of_a_filter_is_named_as_one(
    url: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STOKER_URL")
    refused = call(*words, "shop:jobs", code=2).output
    assert "write -A shop:jobs" in refused
    assert "The words are is, queue" in refused
    assert f"write --url {url}" in call(*words, url, code=2).output
    assert "write -A shop2:jobs" in call(*words, "shop2:jobs", code=2).output


@pytest.mark.spec("CLI-67")
@pytest.mark.parametrize("verb", ["show", "explain"])
def test_an_app_in_the_place_of_an_id_is_named_as_one(url: str, verb: str) -> None:
    assert (
        "shop:jobs is no id of a job. If it is the app, write -A shop:jobs"
        in call("jobs", verb, "shop:jobs", code=2).output
    )


@pytest.mark.spec("CLI-68")
def test_a_term_that_leaves_out_is_no_option(url: str) -> None:
    assert rows("jobs", "list", "-kind:send") == []
    assert len(rows("jobs", "list", "-is:dead", "--limit", "9", "kind:send")) == 2
    assert call("cancel", "-is:dead", "-is:done", "--yes").stdout.startswith("cancel: 1 job")
    assert "No such option" in call("jobs", "list", "-kin:send", code=2).output


@pytest.mark.spec("CLI-78")
def test_errors_are_listed_and_requeued_by_their_id(url: str) -> None:
    [error] = rows("jobs", "errors")
    dead = [row["id"] for row in rows("jobs", "list", "is:dead")]
    assert (error["count"], error["kinds"], error["died"]) == (len(dead), ["send"], len(dead))
    [head, line] = call("jobs", "errors").stdout.splitlines()
    shown = dict(zip(head.split("\t"), line.split("\t"), strict=True))
    assert shown["error"].endswith("no such address\\x1b[2J")
    assert (shown["kinds"], shown["queues"], shown["id"]) == ("send", ", ".join(error["queues"]), error["id"])
    assert (set(shown["deaths 24h"]), shown["first"] <= shown["last"]) == ({"▁", "█"}, True)
    assert rows("jobs", "errors", "is:done") == []
    assert "Did you mean send" in call("jobs", "errors", "kind:sned").stderr
    alike = rows("jobs", "list", f"same_error:{error['id']}", "kind:send")
    assert [row["id"] for row in alike] == dead
    assert call("jobs", "requeue", f"same_error:{error['id']}").stdout.startswith(f"requeue: {len(dead)} job")


@pytest.mark.spec("CLI-69")
def test_an_id_may_be_cut(url: str) -> None:
    dead = [row["id"] for row in rows("jobs", "list", "is:dead")]
    done = rows("jobs", "list", "is:done")[0]["id"]
    for given in (
        done,
        done.replace("-", ""),
        f"{done[:8]}…{done[-6:]}",
        f"{done[:8]}...{done[-6:]}",
        done[:30].upper(),
    ):
        assert call("jobs", "show", given).stdout.startswith(f"id: {done}")
        assert [row["id"] for row in rows("jobs", "list", given)] == [done]
        assert [row["id"] for row in rows("jobs", "list", f"id:{given}")] == [done]
        assert call("jobs", "list", "--count", given).stdout == "1\n"
        assert call("jobs", "explain", given).stdout.startswith("finished")
    alike = rows("jobs", "list", f"same_error:{dead[0][:8]}…{dead[0][-8:]}")
    assert [row["id"] for row in alike] == dead
    several = call("jobs", "show", dead[0][:8], code=2).output
    assert f"several jobs have an id like {dead[0][:8]}: give more of it" in several
    assert all(f"{one}  dead  send" in several for one in dead)
    assert "several jobs" in call("delete", dead[0][:8], "--yes", code=2).output
    assert len(rows("jobs", "list")) == 4
    later = rows("jobs", "list", "is:scheduled")[0]["id"]
    assert f"job {later} is edited" in call("jobs", "edit", f"{later[:8]}…{later[-8:]}", "--priority", "3").stdout
    assert call("jobs", "requeue", f"{dead[0][:8]}…{dead[0][-8:]}").stdout.startswith("requeue: 1 job")
    assert "no job in the store has an id like 01234567" in call("jobs", "show", "01234567", code=3).output
    assert "For text in payloads and errors write '\"01234567\"'" in call("jobs", "list", "01234567", code=3).output


@pytest.mark.spec("CLI-71")
@pytest.mark.parametrize(
    "words", [["jobs", "list", "is:failed"], ["jobs", "list", "failed"], ["failed"], ["list", "dead"]]
)
def test_failed_is_understood(url: str, words: list[str]) -> None:
    assert rows(*words) == rows("jobs", "list", "is:dead")
    assert call("requeue", "is:failed", "--dry-run").stdout.startswith("2 jobs match is:dead.")

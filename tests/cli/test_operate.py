"""`stoker jobs`, `queues`, `workers` and `status`, as an operator types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stoker.app import Stoker
from stoker.cli.command import stoker
from tests.harness.apps import drain

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


@pytest.mark.spec("CLI-11")
def test_jobs_are_listed_as_a_table_or_as_json(url: str) -> None:
    lines = call("jobs", "list", "is:dead").stdout.splitlines()
    assert lines[0].split("\t") == ["id", "status", "queue", "kind", "attempts", "created", "error"]
    assert len(lines) == 3
    assert "no such address" in lines[1]
    assert "\x1b" not in "".join(lines), "nothing that moves the cursor"
    assert [job["payload"]["to"] for job in rows("jobs", "list", "order:oldest", "--limit", "2")] == ["nowhere", "ada"]
    assert len(call("jobs", "list").stdout.splitlines()) == 5


@pytest.mark.spec("CLI-12")
def test_a_dead_job_is_shown_explained_and_requeued(url: str) -> None:
    [job, _] = [row["id"] for row in rows("jobs", "list", "is:dead")]
    shown = call("jobs", "show", job).stdout
    assert "ValueError: no such address" in shown
    assert "status: dead" in shown
    assert call("jobs", "explain", job).stdout.startswith("finished: it is dead: ValueError: no such address")
    [gates] = [json.loads(call("jobs", "explain", job, "--json").stdout)["gates"]]
    assert gates[0]["reason"] == "finished"
    assert call("jobs", "requeue", job).stdout == "requeue: 1 jobs\n"
    found = call("jobs", "explain", job).stdout
    assert found.startswith("no_worker: no worker serves queue 'mail'")
    assert "stoker work" in found


@pytest.mark.spec("CLI-13")
def test_an_action_over_a_filter_counts_first(url: str) -> None:
    assert call("jobs", "requeue", "is:dead", "--dry-run").stdout == "2 jobs match is:dead. Nothing was changed.\n"
    assert "say --yes" in call("jobs", "delete", "is:dead", code=2).output
    assert call("jobs", "delete", "is:dead", "--yes").stdout == "delete: 2 jobs\n"
    assert call("jobs", "list", "is:done,scheduled", code=2).output
    tally = json.loads(call("jobs", "cancel", "is:scheduled", "--yes", "--reason", "no", "--json").stdout)
    assert (tally["changed"], tally["refused"]) == (1, {})
    assert call("jobs", "retry", "is:canceled").stdout == "retry: 0 jobs; 1 left: they are canceled\n"


@pytest.mark.spec("CLI-14")
@pytest.mark.parametrize(
    "words, code, says",
    [
        (["jobs", "show", UNKNOWN], 3, "is not in the store"),
        (["jobs", "show", "seven"], 2, "job id"),
        (["jobs", "list", "is:daed"], 2, "Did you mean dead?"),
        (["jobs", "list", "kind:sned"], 2, "Did you mean send?"),
        (["jobs", "delete", "status:dead"], 2, "The words are"),
        (["queues", "show", "maill"], 3, "neither used nor tuned"),
        (["queues", "tune", "mail"], 2, "name at least one setting"),
        (["queues", "tune", "mail", "--rate", "fast"], 2, "as in 100/1m"),
        (["queues", "tune", "mail", "--keep-done", "soon"], 2, "one of the units"),
        (["queues", "pause", "mail", "--for", "0s"], 2, "must end in the future"),
    ],
)
def test_mistakes_have_exit_codes_and_a_sentence(url: str, words: list[str], code: int, says: str) -> None:
    assert says in call(*words, code=code).output


@pytest.mark.spec("CLI-14")
def test_a_refusal_by_status_has_its_own_exit_code(url: str) -> None:
    [job] = [row["id"] for row in rows("jobs", "list", "is:done")]
    assert "is done, which 'requeue' does not apply to" in call("jobs", "requeue", job, code=4).output


@pytest.mark.spec("CLI-15")
def test_queues_are_paused_tuned_and_shown(url: str) -> None:
    [mail] = rows("queues", "list")
    assert (mail["name"], mail["dead"], mail["scheduled"], mail["paused"]) == ("mail", 2, 1, False)
    call("queues", "pause", "mail", "--for", "30m", "--reason", "a migration", "--by", "ada")
    call("queues", "tune", "mail", "--rate", "100/1m", "--workers", "3", "--keep-done", "2d")
    shown = call("queues", "show", "mail").stdout
    for text in ("paused by ada (a migration), ends in 30 m", "at most 3 at once", "at most 100 per 60 s", "kept: 2 d"):
        assert text in shown
    call("queues", "resume", "mail")
    call("queues", "tune", "mail", "--clear", "rate", "--clear", "workers")
    assert "state: open" in call("queues", "show", "mail").stdout


@pytest.mark.spec("CLI-16")
def test_the_status_names_what_needs_attention(url: str) -> None:
    assert call("status").stdout.splitlines()[-1] != ""
    call("jobs", "requeue", "is:dead")
    shown = call("status", "--check", code=1).stdout
    assert "wrong: mail has 2 ready jobs and no worker" in shown
    assert call("status", "--quiet").stdout.startswith("wrong: mail")
    found = json.loads(call("status", "--json").stdout)
    assert [(kind["kind"], kind["failed"]) for kind in found["kinds"]] == [("send", 2)]
    assert call("workers").stdout.splitlines()[0].startswith("worker\thost")


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
    assert "lacks history, jobs" in call("queues", "list", "--app", "own_admin:half", code=1).output

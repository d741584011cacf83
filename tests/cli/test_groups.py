"""`stoker groups …`, as an operator types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.app import Stoker
from tests.cli.test_operate import UNKNOWN, call, rows
from tests.harness.apps import drain


class Made:
    """The ids of a group that failed and one that waits."""

    def __init__(self, failed: str, waits: str) -> None:
        self.failed, self.waits = failed, waits


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("STOKER_URL", url)
    monkeypatch.delenv("STOKER_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    app = Stoker(url)

    @app.task(attempts=1)
    async def send(n: int) -> None:
        if n % 2:
            raise ValueError("no luck")

    async def fill() -> Made:
        async with app:
            failed = await app.group([send.draft(n) for n in range(4)], on_failure=send.draft(0))
            await drain(app)
            waits = await app.group([send.using(delay=60).draft(n) for n in range(3)])
            return Made(failed.id, waits.id)

    return app.run(fill())


@pytest.mark.spec("GROUP-35")
def test_groups_are_listed_and_shown(made: Made) -> None:
    assert [(one["id"], one["state"], one["total"]) for one in rows("groups", "list")] == [
        (made.waits, "open", 3),
        (made.failed, "failed", 4),
    ]
    lines = call("groups", "list", "--state", "closed").stdout.splitlines()
    assert lines[0].split("\t")[:4] == ["group", "state", "total", "done"]
    assert [line.split("\t")[0] for line in lines[1:]] == [made.failed]
    assert len(rows("groups", "list", "--limit", "1")) == 1
    shown = call("groups", "show", made.failed).stdout
    assert f"{made.failed} failed\n4 members: 2 done, 2 dead, 0 canceled, 0 waiting\n" in shown
    assert "by status: 2 done, 2 dead\n" in shown
    assert "on_failure: " in shown and "(done)\n" in shown
    whole = json.loads(call("groups", "show", made.failed, "--json").stdout)
    assert (whole["statuses"], whole["callbacks"][0]["status"]) == ({"done": 2, "dead": 2}, "done")
    assert len(rows("jobs", "list", f"group:{made.failed}", "is:dead")) == 2
    assert "is not in the store" in call("groups", "show", UNKNOWN, code=3).output
    assert "must be a group's id" in call("jobs", "list", "group:seven", code=2).output


@pytest.mark.spec("GROUP-36")
def test_all_members_are_canceled_and_retried(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("groups", "cancel", made.waits, "--dry-run").stdout == (
        f"3 jobs match is:active group:{made.waits}. Nothing was changed.\n"
    )
    monkeypatch.setattr("stoker.cli.jobs.ASKS_ABOVE", 2)
    refused = " ".join(call("groups", "cancel", made.waits, code=2).output.replace("│", " ").split())
    assert f"cancel 3 jobs of is:active group:{made.waits}? Nothing was changed: there is no terminal" in refused
    assert call("groups", "cancel", made.waits, "--reason", "enough", "--yes").stdout == "cancel: 3 jobs\n"
    assert {one["last_error"] for one in rows("jobs", "list", f"group:{made.waits}")} == {"enough"}
    logged = {(one["action"], one["reason"]) for one in rows("audit")}
    assert logged == {("operations.start", "enough"), ("jobs.cancel", "enough")}
    retried = call("groups", "retry", made.failed)
    assert retried.stdout == "retry: 2 jobs\n"
    stays = (
        "It is closed and stays failed: what happens to its members from now on counts nothing, and stores no callback."
    )
    assert retried.stderr.startswith(f"note: group {made.failed}: {stays}\n")
    assert f"{stays}\n" in call("groups", "show", made.failed).stdout
    assert rows("groups", "list", "--state", "closed")[-1]["state"] == "failed"
    [tally] = rows("groups", "retry", made.failed)
    assert (tally["matching"], tally["changed"]) == (0, 0)
    assert [one["action"] for one in rows("operations", "list")] == ["retry", "cancel"]
    assert "is not in the store" in call("groups", "retry", UNKNOWN, code=3).output

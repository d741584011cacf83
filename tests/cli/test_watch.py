"""`stoker jobs watch`, as an operator types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.app import Stoker
from stoker.context import current
from tests.cli.test_operate import UNKNOWN, call, rows
from tests.harness.apps import drain


@pytest.mark.spec("WATCH-12")
def test_a_job_is_followed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("STOKER_URL", url)
    monkeypatch.delenv("STOKER_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    app = Stoker(url)

    @app.task
    async def talk() -> None:
        run = current()
        for n in range(1_200):
            run.emit({"n": n, "password": "hunter2"})
        run.progress(0.5, "half\x1b[2J", {"pages": 3})
        run.log("one", "two")

    async def fill() -> str:
        async with app:
            made = await talk.enqueue()
            await drain(app)
            return made.id

    job = app.run(fill())
    out = call("jobs", "watch", job).stdout
    lines = out.splitlines()
    assert lines[0].endswith("no longer kept, or sealed with a key that is not here")
    assert lines[1].split(": ", 1)[1].startswith('{"n": ')
    assert lines[-4].startswith("50% half")
    assert lines[-3:] == ["log: one", "log: two", "done, attempt 1"]
    assert "\x1b" not in out
    assert "hunter2" not in out
    found = rows("jobs", "watch", job, "--after", "1199")
    assert [one["event"] for one in found] == ["emitted", "progressed", "logged", "changed"]
    assert (found[0]["n"], found[0]["value"]["n"], found[-1]["ended"]) == (1_200, 1_199, True)
    assert rows("jobs", "watch", job, "--after", found[0]["cursor"]) == found[1:]
    call("jobs", "watch", UNKNOWN, code=3)
    assert "must be a number that job" in call("jobs", "watch", job, "--after", "5000", code=2).stderr

"""`stoker reseal`, and commands on a sealed store without its key."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from stoker import Seal, Stoker
from stoker.cli.command import stoker

run = CliRunner().invoke
APP = """
from stoker import Seal, Stoker

jobs = Stoker({url!r}, seal=Seal(keys={{"new": b"n" * 32, "old": b"o" * 32}}))
jobs.declare("send")
"""


@pytest.mark.spec("SEAL-14", "SEAL-07")
def test_reseal_names_what_it_did_and_a_url_alone_has_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    (tmp_path / "sealed_app.py").write_text(APP.format(url=url))
    monkeypatch.syspath_prepend(tmp_path)

    async def fill() -> str:
        async with Stoker(url, seal=Seal(keys={"old": b"o" * 32})) as jobs:
            jobs.declare("send")
            return (await jobs.enqueue(jobs.draft("send", ["secret"]))).id

    job = asyncio.run(fill())
    refused = run(stoker, ["reseal", "--url", url])
    assert (refused.exit_code, "has no seal=" in refused.output) == (2, True)
    for words in (["enqueue", "send"], ["fork", job], ["edit", job, "--payload", "[]"]):
        found = run(stoker, ["jobs", *words, "--url", url])
        assert found.exit_code != 0
        assert "sealed with key" in found.output
    assert "(sealed with key old, 10 bytes)" in run(stoker, ["jobs", "show", job, "--url", url]).output
    done = run(stoker, ["reseal", "-A", "sealed_app:jobs"])
    assert (done.exit_code, "1 record sealed with the current key" in done.output) == (0, True), done.output
    assert "done: 1 of 1 record" in done.output
    assert "(sealed with key new, 10 bytes)" in run(stoker, ["jobs", "show", job, "--url", url]).output
    assert "secret" in run(stoker, ["jobs", "show", job, "-A", "sealed_app:jobs"]).output
    sys.modules.pop("sealed_app", None)

"""A newcomer's walk: the pages of the tutorial one after the other in one folder, then the dashboard of that app."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from tests.docs.test_blocks import ROOT, run

TUTORIAL = ROOT / "docs" / "tutorial"
PATIENCE = 120.0
"""Seconds in which a page comes, also on a busy machine."""


def test_the_tutorial_leads_to_a_job_a_failure_a_schedule_a_page_and_a_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in re.findall(r"\]\(([\w-]+\.md)\)", (TUTORIAL / "README.md").read_text(encoding="utf-8")):
        run(TUTORIAL / name, ModuleType("__page__"))
    with dashboard() as site:
        overview = site.get("/")
        assert (overview.status_code, "Stoker" in overview.text) == (200, True)
        found = site.get("/jobs", params={"q": "is:done queue:mail"})
        assert found.status_code == 200
        assert {"send", "digest"} <= set(re.findall(r"\w+", found.text))
        assert "digest" in site.get("/schedules").text


@contextmanager
def dashboard() -> Iterator[httpx.Client]:
    """Serve the app of this folder as the page says, and sign in with the key that it prints."""
    command = [sys.executable, "-m", "stoker", "serve", "app:jobs", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = server.stderr.readline()
        try:
            address = re.search(r"(http://127\.0\.0\.1:\d+)/\?key=([\w-]+)", said)
            assert address is not None, said
            head = {"Authorization": f"Bearer {address[2]}"}
            with httpx.Client(base_url=address[1], headers=head, timeout=PATIENCE) as client:
                yield client
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=PATIENCE)

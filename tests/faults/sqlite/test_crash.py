"""A process that dies at any statement or write of any action leaves all of it or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.fork_server import ForkServer
from tests.faults.sqlite.actions import ACTIONS
from tests.faults.sqlite.crashes import explore, explore_migration, furnished

DOORS = ("insert", "claim", "settle", "settle otherwise", "renew", "reap", "expire")
"""What happens all the time is tried at every point, the rest at every third unless there is time."""

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def prepared(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    fork_server.call(furnished, folder=str(folder))
    return folder


@pytest.mark.spec("FAULT-04")
@pytest.mark.parametrize("name", ACTIONS)
def test_dying_at_any_statement_leaves_all_or_nothing(
    fork_server: ForkServer, prepared: Path, campaign: bool, name: str
) -> None:
    every = 1 if campaign or name in DOORS else 3
    report = fork_server.call(explore, within=600, folder=str(prepared), name=name, by="statement", every=every).answer
    print(f"{name}: died at {report['died']} of {report['total']} statements")
    assert report["complaints"] == []
    assert report["died"] == report["points"] > 0


@pytest.mark.spec("FAULT-04")
@pytest.mark.parametrize("name", ["insert", "claim", "settle", "settle otherwise", "reap", "expire"])
def test_dying_at_any_write_leaves_all_or_nothing(
    fork_server: ForkServer, prepared: Path, campaign: bool, name: str
) -> None:
    every = 1 if campaign else 2
    report = fork_server.call(explore, within=600, folder=str(prepared), name=name, by="write", every=every).answer
    print(f"{name}: died at {report['died']} of {report['total']} writes")
    assert report["complaints"] == []
    assert report["died"] == report["points"] > 0


@pytest.mark.spec("FAULT-05")
def test_a_migration_that_died_is_finished_by_the_next_one(
    fork_server: ForkServer, tmp_path: Path, campaign: bool
) -> None:
    report = fork_server.call(explore_migration, within=600, folder=str(tmp_path), every=1 if campaign else 5).answer
    print(f"died at {report['died']} of {report['total']} statements")
    assert report["complaints"] == []
    assert report["died"] > 5

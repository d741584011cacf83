from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fork_server import ForkServer

MODULES = (
    "tests.faults.streams",
    "tests.faults.sqlite.storm",
    "tests.faults.sqlite.crashes",
    "tests.faults.sqlite.failing_disk",
)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    made = ForkServer(*MODULES)
    yield made
    made.close()


@pytest.fixture(scope="session")
def other_fork_server() -> Iterator[ForkServer]:
    """A second fork_server, for work in parallel."""
    made = ForkServer(*MODULES)
    yield made
    made.close()

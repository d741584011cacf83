from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fork_server import ForkServer

ENGINES = ("stoker.engines.sqlite", "stoker.engines.postgres", "stoker.engines.redis")
STORMS = ("tests.faults.groups", "tests.faults.limits", "tests.faults.blocks", "tests.faults.streams")


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    made = ForkServer(*STORMS, *ENGINES)
    yield made
    made.close()

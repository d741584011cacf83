from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fork_server import ForkServer

ENGINES = ("stoker.engines.sqlite", "stoker.engines.postgres", "stoker.engines.redis")
STORMS = tuple(f"tests.faults.{name}" for name in ("groups", "limits", "blocks", "streams", "flows"))


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    made = ForkServer(*STORMS, *ENGINES)
    yield made
    made.close()

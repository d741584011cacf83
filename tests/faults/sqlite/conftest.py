from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.zygote import Zygote

MODULES = (
    "tests.faults.blocks",
    "tests.faults.streams",
    "tests.faults.sqlite.storm",
    "tests.faults.sqlite.crashes",
    "tests.faults.sqlite.harm",
)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    made = Zygote(*MODULES)
    yield made
    made.close()


@pytest.fixture(scope="session")
def other_zygote() -> Iterator[Zygote]:
    """A second zygote, for work in parallel."""
    made = Zygote(*MODULES)
    yield made
    made.close()

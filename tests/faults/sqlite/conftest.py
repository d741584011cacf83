from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.zygote import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    made = Zygote("tests.faults.sqlite.storm", "tests.faults.sqlite.crashes", "tests.faults.sqlite.harm")
    yield made
    made.close()

from __future__ import annotations

import pytest

from tests.faults.network import Network

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.timeout(900)]


class TestNetwork(Network):
    pass

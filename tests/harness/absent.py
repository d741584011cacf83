"""What a full machine has: its absence is a skip on a developer's machine and a failure under CI."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def absent(why: str) -> NoReturn:
    """Skip the test for want of a server or browser; under `CI=true` fail it, so that nothing is left out unseen."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{why}. With CI=true every server and the browser must be there", pytrace=False)
    pytest.skip(why)

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.shell import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)

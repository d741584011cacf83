from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.shell import Scene


@pytest.fixture(scope="session", autouse=True)
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hundreds of processes start here: let each find what the first one compiled, also where none may be kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("compiled")))
        yield


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.parallel_deployments import Stage, group
from tests.worker.shell import Deployment


@pytest.fixture(scope="session", autouse=True)
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hundreds of processes start here: let each find what the first one compiled, also where none may be kept."""
    if "PYTHONPYCACHEPREFIX" in os.environ:  # as in the rooms of the whole run
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("compiled")))
        yield


@pytest.fixture(scope="session")
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(request.session, tmp_path_factory)
    yield made
    made.close()


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that runs in parallel only waits for its deployment. In a campaign each has the machine to itself."""
    if group(pyfuncitem) is None or pyfuncitem.config.getoption("--campaign"):
        return None
    stage: Stage = pyfuncitem._request.getfixturevalue("stage")
    stage.play(pyfuncitem)
    return True

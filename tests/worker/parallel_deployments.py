"""Runs deployments in parallel.

A deployment is a real `stoker work` on a store of its own, and most of its time is waiting. The first test of a module
marked `parallel_deployment` starts the deployments of all of them (`parallel_deployment("name")`: of all in that
group), `WIDTH` at a time, each in a thread. Every test then waits for its own deployment and reports its result.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.worker.shell import Deployment

WIDTH = 4


class Stage:
    """The deployments of a session."""

    def __init__(self, session: pytest.Session, folders: pytest.TempPathFactory) -> None:
        self._session = session
        self._folders = folders
        self._pool = ThreadPoolExecutor(WIDTH, "deployment")
        self._environ = dict(os.environ)  # other tests change it for a while
        self._playing: dict[str, Future[None]] = {}

    def play(self, item: pytest.Function) -> None:
        """Wait for the deployment of a test; the first one of a group starts them all."""
        if item.nodeid not in self._playing:
            for other in self._session.items:
                if isinstance(other, pytest.Function) and group(other) == group(item):
                    self._playing[other.nodeid] = self._pool.submit(self._one, other)
        self._playing[item.nodeid].result()

    def _one(self, item: pytest.Function) -> None:
        given: dict[str, Any] = dict(item.callspec.params) if hasattr(item, "callspec") else {}
        if "campaign" in item.fixturenames:
            given["campaign"] = False
        item.obj(Deployment(self._folders.mktemp("deployment"), self._environ), **given)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def group(item: pytest.Function) -> str | None:
    """The group of deployments a test runs with; None: it runs alone."""
    marker = item.get_closest_marker("parallel_deployment")
    return None if marker is None else str(marker.args[0]) if marker.args else item.module.__name__

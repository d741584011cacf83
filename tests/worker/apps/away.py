"""An app whose store goes away while a file exists."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.app import Stoker
from stoker.engines.sqlite import SqliteEngine
from stoker.model.errors import EngineUnavailable


class Flaky(SqliteEngine):
    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(path, **options)
        for facet, name in ((self.jobs, "renew"), (self.operator, "census")):
            setattr(facet, name, _flaky(getattr(facet, name)))


def _flaky(call: Callable[..., Any]) -> Callable[..., Any]:
    async def flaky(*args: Any, **kwargs: Any) -> Any:
        if Path(os.environ["AWAY"]).exists():
            raise EngineUnavailable("the cable is out")
        return await call(*args, **kwargs)

    return flaky


jobs = Stoker(Flaky(os.environ["STORE"]))


@jobs.task
async def nothing() -> None:
    return None

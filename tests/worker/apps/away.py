"""An app whose store goes away while a file exists."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stoker.app import Stoker
from stoker.engines.sqlite import SqliteEngine
from stoker.model.errors import EngineUnavailable


class Flaky(SqliteEngine):
    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(path, **options)
        renew = self.jobs.renew

        async def flaky(*args: Any, **kwargs: Any) -> Any:
            if Path(os.environ["AWAY"]).exists():
                raise EngineUnavailable("the cable is out")
            return await renew(*args, **kwargs)

        self.jobs.renew = flaky  # type: ignore[method-assign]


jobs = Stoker(Flaky(os.environ["STORE"]))


@jobs.task
async def nothing() -> None:
    return None

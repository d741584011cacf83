"""Trials on the Postgres that is being hurt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from stoker.engines.postgres import PostgresEngine
from tests.faults.trial import Trial

IMPATIENT = 1.0
"""Seconds a statement may take here, so that a test need not wait longer for nothing."""

Make: TypeAlias = Callable[..., PostgresEngine]
"""An engine on the test's schema, by a URL; directly without one."""


def trial(make: Make, url: str | None = None, *, timeout: float = IMPATIENT, **settings: Any) -> Trial:
    return Trial(make(url, timeout=timeout), make(timeout=30.0), **settings)

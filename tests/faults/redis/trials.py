"""Trials on a Redis that is being hurt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from stoker.engines.redis import RedisEngine
from tests.faults.trial import Trial

IMPATIENT = {"timeout": 0.5, "patience": 0.5}
"""Seconds a call may take here, so that a test need not wait longer for nothing."""

Make: TypeAlias = Callable[..., RedisEngine]
"""An engine on the test's server, by a URL; directly without one."""


def trial(make: Make, url: str | None = None, **settings: Any) -> Trial:
    return Trial(make(url), make(timeout=10.0, patience=10.0), **settings)


def whole(make: Make, url: str | None = None, **settings: Any) -> Trial:
    """A trial whose callers must not see an error: its engine waits as long as a busy machine may need."""
    return Trial(make(url, timeout=30.0, patience=30.0), make(timeout=10.0, patience=10.0), **settings)

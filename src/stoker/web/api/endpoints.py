"""Every call of the REST API. No call runs code or reads a file, and none ends a process but a worker's, in grace."""

from __future__ import annotations

from typing import Final

from stoker.web.api import groups, jobs, limits, operations, overview, queues, schedules, streams, tokens
from stoker.web.api.endpoint import Endpoint

NOUNS: Final = (overview, jobs, groups, operations, queues, schedules, limits, streams, tokens)

ENDPOINTS: Final[tuple[Endpoint, ...]] = tuple(one for noun in NOUNS for one in noun.api.endpoints)

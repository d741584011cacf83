"""Log records about jobs: a filter that names the job, and a JSON formatter whose keys stay.

Both are plain `logging`; with structlog or another library use the filter's attributes, or `current().about`.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Final

from stoker.context import JobLogFilter as JobLogFilter  # noqa: PLC0414 - public here

ABOUT_JOBS: Final = ("job", "kind", "queue", "attempt", "tenant", "correlation", "jobs")
"""What records say about a job; `jobs` is the size of a chunk."""


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, pid, message, then what is known of the job, then `error`."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        line = {"time": timestamp(record), "level": record.levelname, "logger": record.name, "pid": record.process}
        line["message"] = record.getMessage()
        line.update({key: value for key in ABOUT_JOBS if (value := getattr(record, key, None)) is not None})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["error"] = record.exc_text
        return json.dumps(line, default=str)


def timestamp(record: logging.LogRecord) -> str:
    """When it was made, in UTC with milliseconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"

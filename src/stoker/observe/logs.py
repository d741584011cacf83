"""Log records about jobs: filters that name the job and mask secrets, and a JSON formatter whose keys stay.

They are plain `logging`; with structlog or another library use the filter's attributes, or `current().about`.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Final

from stoker.context import JobLogFilter as JobLogFilter  # noqa: PLC0414 - public here
from stoker.model.redact import Redaction

ABOUT_JOBS: Final = ("job", "kind", "queue", "attempt", "tenant", "correlation", "jobs")
"""What records say about a job; `jobs` is the size of a chunk."""


class RedactingFilter(logging.Filter):
    """Masks secrets in log records as the dashboard masks them in jobs; drops no record.

    It masks what is assigned to the name of a secret (`password=…`, `"token": "…"`) and passwords of addresses, in the
    message and in tracebacks. Records are changed for all handlers that see them afterwards, and an exception becomes
    its text: give the filter to the handlers that write text, `handler.addFilter(RedactingFilter())`.
    """

    def __init__(self, redaction: Redaction | None = None) -> None:
        super().__init__()
        self._redaction = redaction or Redaction()

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask the record and keep it."""
        mask = self._redaction.text
        record.msg, record.args = mask(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            record.exc_text = _PLAIN.formatException(record.exc_info)
        record.exc_info = None
        if record.exc_text:
            record.exc_text = mask(record.exc_text)
        if record.stack_info:
            record.stack_info = mask(record.stack_info)
        return True


_PLAIN: Final = logging.Formatter()


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

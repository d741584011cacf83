"""Log records about jobs: filters that name the job and mask secrets, and a masking JSON formatter whose keys stay.

They are plain `logging`; with structlog or another library use the filter's attributes, or `current().about`.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from typing import Any, Final

from stoker.codec.error_text import describe_error
from stoker.context import JobLogFilter as JobLogFilter  # noqa: PLC0414 - public here
from stoker.model.failure_report import error_type
from stoker.model.redact import Redaction
from stoker.release import release

ABOUT_JOBS: Final = ("job", "kind", "queue", "attempt", "tenant", "correlation", "jobs", "trace_id")
"""What records say about a job; `jobs` is the size of a chunk."""

HOST: Final = socket.gethostname()


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
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = record.exc_text or _PLAIN.formatException(record.exc_info)
            record.__dict__.setdefault("error", describe_error(record.exc_info[1]))
        record.exc_info = None
        if isinstance(error := getattr(record, "error", None), str):
            record.__dict__["error"] = mask(error)
        if record.exc_text:
            record.exc_text = mask(record.exc_text)
        if record.stack_info:
            record.stack_info = mask(record.stack_info)
        return True


_PLAIN: Final = logging.Formatter()


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, pid, host, message, what is known of the job, then the error.

    `error` begins with the line of the exception, as on the page of a job. Secrets are masked in it and in the message
    as the dashboard masks them; the record itself stays as it is for other handlers.
    """

    def __init__(self, redaction: Redaction | None = None) -> None:
        super().__init__()
        self._redaction = redaction or Redaction()

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        mask, about = self._redaction.text, record.__dict__
        line: dict[str, Any] = {"time": timestamp(record), "level": record.levelname, "logger": record.name}
        line |= {"pid": record.process, "host": HOST, "message": mask(record.getMessage())}
        line |= {key: about[key] for key in (*ABOUT_JOBS, "worker") if about.get(key) is not None}
        line |= {"release": release()} if release() else {}
        error = about.get("error") or record.exc_text
        if record.exc_info and record.exc_info[1] is not None:
            error = describe_error(record.exc_info[1])
        if error:
            kind = about.get("error_type") or error_type(str(error))
            line |= ({} if kind is None else {"error_type": kind}) | {"error": mask(str(error))}
        return json.dumps(line, default=str)


def timestamp(record: logging.LogRecord) -> str:
    """When it was made, in UTC with milliseconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"

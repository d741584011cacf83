"""Logs of the command line: plain or JSON lines, which text from a job cannot forge."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Literal, ParamSpec, TypeAlias, TypeVar

import click

from stoker.cli.text import safe
from stoker.context import name_jobs_in_logs
from stoker.model.redact import Redaction
from stoker.observe.logs import ABOUT_JOBS, JsonFormatter, timestamp

Format: TypeAlias = Literal["plain", "json"]

P = ParamSpec("P")
T = TypeVar("T")


class Plain(logging.Formatter):
    """`2030-01-01T09:00:00.123Z INFO stoker.worker: message`; further lines are indented, and secrets are masked."""

    _redaction = Redaction()

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        job = getattr(record, "job", None)
        named = job is not None and str(job) in record.getMessage()  # a message that names its job needs no more
        keys = ("trace_id",) if named else ABOUT_JOBS
        fields = {key: getattr(record, key, None) for key in keys}
        about = " ".join(f"{key}={value}" for key, value in fields.items() if value is not None)
        text = self._redaction.text(super().format(record)) + (f" [{about}]" if about else "")
        return f"{timestamp(record)} {record.levelname} {record.name}: " + safe(text).replace("\n", "\n    ")


class _Print(logging.Handler):
    def __init__(self, out: Callable[[str], object]) -> None:
        super().__init__()
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._out(self.format(record))
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)


LEVELS = ("debug", "info", "warning", "error")


def _levels(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> str:
    """The levels as one text, for this process and its children."""
    for one in given:
        name, equals, level = one.rpartition("=")
        if level not in LEVELS or bool(name) != bool(equals) or "," in name:
            raise click.BadParameter(f"{one!r} must be one of {', '.join(LEVELS)}, or LOGGER=LEVEL as in httpx=warning")
    return ",".join(given)


def options(command: Callable[P, T]) -> Callable[P, T]:
    """Give a command the options that say how it logs."""
    for option in (
        click.option(
            "--log-level",
            multiple=True,
            metavar="LEVEL",
            default=["info"],
            callback=_levels,
            help="debug, info, warning or error, of Stoker's own loggers; httpx=warning of another. Repeatable.",
        ),
        click.option("--log-format", type=click.Choice(["plain", "json"]), default="plain", show_default=True),
    ):
        command = option(command)
    return command


def configure(log_format: Format = "plain", level: str = "INFO", out: Callable[[str], object] | None = None) -> None:
    """Send every log record to standard error, or to `out`; `level` is Stoker's own, as in `debug,httpx=warning`.

    Loggers that it does not name keep the level they have, or inherit INFO from the root: what an app's own code logs
    is for the app to choose.
    """
    handler = logging.StreamHandler(sys.stderr) if out is None else _Print(out)
    handler.setFormatter(JsonFormatter() if log_format == "json" else Plain())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("stoker").setLevel(logging.INFO)
    for one in level.split(","):
        name, _, least = one.rpartition("=")
        logging.getLogger(name or "stoker").setLevel(least.upper())
    name_jobs_in_logs()
    # A closed pipe must not turn every line into a traceback about the pipe.
    logging.raiseExceptions = False

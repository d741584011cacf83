"""When two errors are the same: their first lines agree, but for what varies from job to job."""

from __future__ import annotations

import re

from stoker.model.redact import Redaction

_MASK = Redaction()
_VARYING = re.compile(
    r"""(?ix) [0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}  # a UUID
        | "[^"]*" | (?<!\w)'[^']*' | `[^`]*`               # what is quoted
        | \b0x[0-9a-f]+\b | \b(?=[a-z]*\d)[0-9a-f]{6,}\b   # hex
        | \d+"""
)
ELLIPSIS = "…"


def error_line(error: str | None) -> str:
    """The first line of an error: its class and message."""
    return ((error or "").strip().splitlines() or [""])[0][:500]


def normalized_error(error: str | None) -> str:
    """The first line of an error, with what varies replaced by `…`: ids, numbers, hex, quoted text.

    Jobs of one kind whose errors agree in this have the same error. Secrets are masked first: whether two jobs have
    the same error must not say whether they have the same password.
    """
    return _VARYING.sub(ELLIPSIS, _MASK.text(error_line(error)))

"""Text that came from jobs, fit for a terminal: what would move its cursor or change its colours is made visible."""

from __future__ import annotations

import re

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def safe(text: str) -> str:
    """Control and direction characters escaped; tabs and line ends stay."""
    return _UNSAFE.sub(_escape, text)


def one_line(text: str, longest: int = 200) -> str:
    """The same on one line, shortened."""
    text = " ".join(safe(text[: longest * 2]).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

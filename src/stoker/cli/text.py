"""Text that came from jobs, fit for a terminal: what would move its cursor or change its colours is made visible."""

from __future__ import annotations

from stoker.codec.error_text import one_line, safe

__all__ = ["one_line", "safe"]

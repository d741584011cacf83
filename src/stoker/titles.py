"""Process titles: what `ps` and `top` show of supervisors, workers and processes of handlers (the extra `titles`)."""

from __future__ import annotations


def set_title(text: str) -> None:
    """Give this process a title. Without `setproctitle` nothing happens."""
    try:
        from setproctitle import setproctitle
    except ImportError:
        return
    setproctitle(f"stoker: {text}")

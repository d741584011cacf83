"""The write-ahead log as a file: is it still the one that was opened, and does the disk have it?

SQLite writes it and reads it; all that happens here is looking at it and waiting for the disk. A file descriptor of our
own costs SQLite nothing: its locks are on other files.
"""

from __future__ import annotations

import os

from stoker.engines.sqlite import checks
from stoker.model.errors import EngineUnavailable

_sync = getattr(os, "fdatasync", os.fsync)  # what SQLite itself takes for its log, where the system has it


class Log:
    """The log of one connection. `doubtful`: the disk failed to sync it, and has forgotten what it was to write."""

    __slots__ = ("_database", "_file", "_identity", "doubtful", "path")

    def __init__(self, database: str) -> None:
        self.path = f"{database}-wal"
        self.doubtful = False
        self._database = database
        self._file: int | None = None
        self._identity: tuple[int, int] | None = None

    def look(self) -> None:
        """The log stays the same file for as long as anybody has the database open, unless somebody meddles."""
        found = checks.identity(self.path)
        if self._identity is None:
            self._identity = found
        elif found != self._identity:
            raise EngineUnavailable(
                f"the log {self.path} was deleted or replaced while the database was open. Nothing was written. Put it "
                "back, or close every program that has the database open, without killing it, and open it again: "
                "what the log held is stored when the last one closes"
            )

    def sync(self) -> None:
        """Wait until the disk has the log, and with it every commit so far."""
        try:
            if self._file is None:
                self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            _sync(self._file)
        except OSError as error:
            self.doubtful = True
            raise EngineUnavailable(
                f"the disk did not confirm what was just stored in {self._database}: {error.strerror}. It is there and "
                "its jobs may run, but a power loss could undo it. Repeating the call with the same job ids is safe"
            ) from error

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

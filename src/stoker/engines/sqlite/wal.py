"""The write-ahead log as a file: checks that it was not replaced, and fsyncs it.

SQLite writes and reads it. Wake-ups are sent before the fsync and the caller is answered after it, so the engine syncs
the file itself, on a descriptor of its own. Closing that drops no lock of SQLite: those are on other files.
"""

from __future__ import annotations

import os

from stoker.engines.sqlite import file_checks
from stoker.model.errors import EngineUnavailable

_sync = getattr(os, "fdatasync", os.fsync)  # what SQLite itself calls for its log, where the system has it


class Wal:
    """The log of one connection.

    `unsynced`: an fsync failed. The kernel may have dropped the pages it could not write, so the log cannot be synced
    again and must be restarted.
    """

    __slots__ = ("_database", "_file", "_identity", "path", "unsynced")

    def __init__(self, database: str) -> None:
        self.path = f"{database}-wal"
        self.unsynced = False
        self._database = database
        self._file: int | None = None
        self._identity: tuple[int, int] | None = None

    def check(self) -> None:
        """Raise if the file was replaced.

        SQLite keeps it for as long as a connection is open.
        """
        found = file_checks.identity(self.path)
        if self._identity is None:
            self._identity = found
        elif found != self._identity:
            raise EngineUnavailable(
                f"the log {self.path} was deleted or replaced while the database was open. Nothing was written. Put it "
                "back, or close every program that has the database open, without killing it, and open it again: "
                "what the log held is stored when the last one closes"
            )

    def sync(self) -> None:
        """Fsync the log, and with it every commit so far."""
        try:
            if self._file is None:
                self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            _sync(self._file)
        except OSError as error:
            self.unsynced = True
            raise EngineUnavailable(
                f"the disk did not confirm what was just stored in {self._database}: {error.strerror}. It is stored "
                "and its jobs may run, but a power loss could undo it. Repeating the call with the same job ids is safe"
            ) from error

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

"""Watches Python files for `--reload` by scanning the project's folder twice a second."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist"}
MOST_FILES = 20_000


class SourceWatch:
    """Remembers time and size of every Python file below the current folder."""

    def __init__(self) -> None:
        self._root = Path.cwd()
        self._seen = self._scan()

    def changed(self) -> str | None:
        """Return a file that was added, removed or written since the last call; None if there is none."""
        now, before = self._scan(), self._seen
        self._seen = now
        for path in now.keys() | before.keys():
            if now.get(path) != before.get(path):
                return os.path.relpath(path, self._root)
        return None

    def _scan(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for entry in _python_files(self._root):
            try:
                status = entry.stat()
            except OSError:
                continue
            found[entry.path] = (status.st_mtime_ns, status.st_size)
            if len(found) >= MOST_FILES:
                break
        return found


def _python_files(root: Path) -> Iterator[os.DirEntry[str]]:
    waiting = [str(root)]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in SKIPPED and not entry.name.startswith("."):
                    waiting.append(entry.path)
            elif entry.name.endswith(".py"):
                yield entry

"""Make SQLite's system calls fail one by one, through its replaceable operating-system layer.

Works in this process only, without privileges and without a compiler, so it belongs into a forked child. The calls
that sync a file are not among the replaceable ones; `strace` harms those.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_int, _long, _size, _text, _pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p
_WRITE = (_long, _int, _pointer, _size, _long)
SHAPES: dict[str, tuple[Any, ...]] = {
    "pwrite": _WRITE,
    "pwrite64": _WRITE,
    "pread": _WRITE,
    "pread64": _WRITE,
    "ftruncate": (_int, _int, _long),
    "open": (_int, _text, _int, _int),
    "unlink": (_int, _text),
    "mmap": (_pointer, _pointer, _size, _int, _int, _int, _long),
}
WRITES = ("pwrite", "pwrite64")
READS = ("pread", "pread64")


class Vfs(ctypes.Structure):
    """`sqlite3_vfs`, third version."""

    _fields_ = [
        *((name, _int) for name in ("version", "size", "longest")),
        *((name, _pointer) for name in ("next", "name", "data")),
        *((f"call{number}", _pointer) for number in range(13)),
        ("set_call", ctypes.CFUNCTYPE(_int, _pointer, _text, _pointer)),
        ("get_call", ctypes.CFUNCTYPE(_pointer, _pointer, _text)),
        ("next_call", _pointer),
    ]


def library() -> ctypes.CDLL | None:
    """Return the SQLite library that `sqlite3` uses; None where it cannot be loaded."""
    import _sqlite3

    candidates: list[str | None] = [getattr(_sqlite3, "__file__", None)]
    if sys.platform == "linux":
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        candidates += [line.split()[-1] for line in maps.splitlines() if "libsqlite3" in line][:1]
    else:
        candidates.append(ctypes.util.find_library("sqlite3"))
    for name in candidates:
        try:
            found = ctypes.CDLL(name)
            found.sqlite3_libversion.restype = _text
            if found.sqlite3_libversion().decode() == sqlite3.sqlite_version:
                return found
        except (OSError, AttributeError):
            continue
    return None


class Saboteur:
    """Intercepts SQLite's system calls. Counts from `arm` on, and fails `times` calls from the `at`-th on."""

    def __init__(self, names: Iterable[str]) -> None:
        found = library()
        assert found is not None
        find = found.sqlite3_vfs_find
        find.restype, find.argtypes = ctypes.POINTER(Vfs), [_text]
        self._vfs = find(None)
        self._kept: list[Any] = []
        self.count = self.struck = 0
        self._range = range(0)
        self._strike: Callable[[], int] = lambda: 0
        for name in names:
            self._replace(name)

    def arm(self, at: int, times: int = 1, *, error: int = 0, end: bool = False) -> None:
        """Fail with `error`, or end the process on the spot."""
        self.count = self.struck = 0
        self._range = range(at, at + times)

        def strike() -> int:
            if end:
                os._exit(137)
            ctypes.set_errno(error)
            return -1

        self._strike = strike

    def disarm(self) -> None:
        self._range = range(0)

    def _replace(self, name: str) -> None:
        raw = self._vfs[0].get_call(ctypes.cast(self._vfs, _pointer), name.encode())
        if not raw:
            return
        shape = ctypes.CFUNCTYPE(*SHAPES[name], use_errno=True)
        original = shape(raw)

        def between(*arguments: Any) -> Any:
            self.count += 1
            if self.count in self._range:
                self.struck += 1
                return self._strike()
            return original(*arguments)

        replacement = shape(between)
        self._kept += [original, replacement]
        self._vfs[0].set_call(ctypes.cast(self._vfs, _pointer), name.encode(), ctypes.cast(replacement, _pointer))

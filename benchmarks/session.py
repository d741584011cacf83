"""One run of the benchmarks: how much it measures, and the files it measures on."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from benchmarks.grounds import Ground, Name


class Session:
    """Scratch files live in one folder that goes with the run. Stores that take long to build are built once."""

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self.rounds = 5 if quick else 9
        self._numbers = itertools.count()
        self._built: dict[str, Path] = {}
        self._servers = ExitStack()
        self._grounds: dict[Name, Ground] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._servers.close()

    def ground(self, name: Name) -> Ground:
        """A server, started at the first request and gone with the run."""
        if name not in self._grounds:
            from benchmarks.grounds import Ground

            self._grounds[name] = Ground(name, self._servers)
        return self._grounds[name]

    def sized(self, quick: int, full: int) -> int:
        """How many of something, depending on how much time there is."""
        return quick if self.quick else full

    def fresh(self) -> Path:
        """A new path, in a folder of its own."""
        folder = self.folder / str(next(self._numbers))
        folder.mkdir()
        return folder / "jobs.db"

    def built(self, key: str, build: Callable[[Path], None]) -> Path:
        """A store that is built at the first request and may be copied afterwards."""
        if key not in self._built:
            path = self.fresh()
            build(path)
            self._built[key] = path
        return self._built[key]

    @contextmanager
    def copies(self, original: Path, n: int = 1) -> Iterator[list[Path]]:
        """Copies of a closed store, gone afterwards."""
        paths = [self.fresh() for _ in range(n)]
        for path in paths:
            shutil.copyfile(original, path)
        yield paths
        for path in paths:
            self.discard(path)

    def discard(self, path: Path) -> None:
        """Remove a store and what lies beside it: big ones would fill the disk."""
        shutil.rmtree(path.parent, ignore_errors=True)

"""The processes of a storm, which are killed and frozen at random instants and begin anew."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tests.faults.fork_server import forked


def kill(pid: int) -> None:
    """Kill a child and wait for its end."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


class Members:
    """Children that each do one work for ever. `fault` harms one of them; a killed one begins anew at once.

    `freezing` is how many of the faults freeze a member, for `frozen_for` seconds; one at a time is frozen.
    """

    def __init__(
        self,
        works: Sequence[Callable[[], Coroutine[Any, Any, None]]],
        chance: random.Random,
        *,
        freezing: float = 0.0,
        frozen_for: float = 0.0,
    ) -> None:
        self._works = works
        self._chance = chance
        self._freezing, self._frozen_for = freezing, frozen_for
        self._frozen: dict[int, float] = {}
        self.were_frozen: set[int] = set()
        self.pids = [self._born(place) for place in range(len(works))]
        self.killed: dict[int, float] = {}
        """When each one was sent its signal, by its pid: what it ran may start elsewhere before its killer goes on."""
        self.tally = Counter[str](killed=0, frozen=0)

    def _born(self, place: int) -> int:
        return forked(lambda: asyncio.run(self._works[place]()))

    @property
    def awake(self) -> list[int]:
        """Those that are not frozen."""
        return [pid for pid in self.pids if pid not in self._frozen]

    def fault(self) -> bool:
        """Kill or freeze one at random; False: the chosen one is frozen already."""
        self.thaw(time.monotonic())
        place = self._chance.randrange(len(self.pids))
        pid = self.pids[place]
        if pid in self._frozen:
            return False
        if self._chance.random() < self._freezing and not self._frozen:
            os.kill(pid, signal.SIGSTOP)
            self._frozen[pid] = time.monotonic() + self._frozen_for
            self.were_frozen.add(pid)
            self.tally["frozen"] += 1
        else:
            self._kill(pid)
            self.pids[place] = self._born(place)
            self.tally["killed"] += 1
        return True

    def thaw(self, now: float = float("inf")) -> None:
        """Let those go on that were frozen long enough; without an instant all."""
        for pid, until in list(self._frozen.items()):
            if now >= until:
                os.kill(pid, signal.SIGCONT)
                del self._frozen[pid]

    def check(self) -> None:
        """Raise if one ended by itself."""
        if any(os.waitpid(pid, os.WNOHANG)[0] for pid in self.pids):
            raise RuntimeError("a process of the storm ended by itself; its error stands above")

    def end(self) -> None:
        """Kill all, frozen as they are."""
        for pid in self.pids:
            self._kill(pid)

    def _kill(self, pid: int) -> None:
        self.killed[pid] = time.monotonic()
        kill(pid)

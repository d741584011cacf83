"""`current().metadata`: what a run reads and writes beside its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping

from stoker.model.job import Claim

NOTED = "exec_"
"""Prefix of metadata keys that runs wrote."""


class RunMetadata(MutableMapping[str, str]):
    """Metadata of a run: its own, then that of earlier attempts, then that of the enqueue.

    Only the run's own (`own`) can be changed. `changed`, if set, is called with each key and its new value, None when
    it is removed.
    """

    __slots__ = ("_earlier", "changed", "own")

    def __init__(self, claim: Claim) -> None:
        stored = claim.metadata or {}
        noted = {key.removeprefix(NOTED): value for key, value in stored.items() if key.startswith(NOTED)}
        self._earlier = {**(claim.options.metadata or {}), **noted}
        self.own: dict[str, str] = {}
        self.changed: Callable[[str, str | None], None] | None = None

    def __getitem__(self, key: str) -> str:
        return self.own[key] if key in self.own else self._earlier[key]

    def __setitem__(self, key: str, value: str) -> None:
        self.own[key] = value
        if self.changed is not None:
            self.changed(key, value)

    def __delitem__(self, key: str) -> None:
        del self.own[key]
        if self.changed is not None:
            self.changed(key, None)

    def note(self, key: str, value: str | None) -> None:
        """Write or remove what the run wrote in a child process."""
        if value is None:
            self.own.pop(key, None)
        else:
            self.own[key] = value

    def __iter__(self) -> Iterator[str]:
        return iter({**self._earlier, **self.own})

    def __len__(self) -> int:
        return len({**self._earlier, **self.own})

    def __repr__(self) -> str:
        return repr(dict(self))

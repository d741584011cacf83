"""Chunks: one call of a handler for many jobs, and what its return value means for each of them."""

from __future__ import annotations

import msgspec

from stoker.model.errors import ChunkMismatch, InvalidInput
from stoker.model.time import SECOND, Seconds, span

LARGEST_CHUNK = 10_000


class Chunk(msgspec.Struct, frozen=True):
    """Call the handler with up to `size` jobs; a job waits at most `within` for the others."""

    size: int
    within: Seconds = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 1 <= self.size <= LARGEST_CHUNK:
            raise InvalidInput("Chunk.size", self.size, f"must be a whole number from 1 to {LARGEST_CHUNK}")
        msgspec.structs.force_setattr(self, "within", span(self.within, "Chunk.within") / SECOND)


def answers(task: str, returned: object, jobs: int) -> list[object]:
    """Return what the handler returned for each job: a result, or an exception that counts as raised by that job.

    None means that every job is done, without a result. Raises `ChunkMismatch` for anything but None and a list with
    one value per job: which value belongs to which job is then unknown.
    """
    if returned is None:
        return [None] * jobs
    if not isinstance(returned, list | tuple):
        raise ChunkMismatch(task, f"a value of type {type(returned).__name__}", jobs)
    if len(returned) != jobs:
        raise ChunkMismatch(task, f"a list of {len(returned)}", jobs)
    return list(returned)

"""Progress, metadata and log lines of handlers, kept until the worker writes them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Sequence

import msgspec

from stoker.context import METADATA_WARNING, Context
from stoker.engines.base import Engine
from stoker.model.errors import AWAY
from stoker.model.humanize import count
from stoker.model.ids import JobId
from stoker.model.job import LONGEST_LOG, Claim, Note
from stoker.worker.emit_buffer import EmitBuffer

logger = logging.getLogger("stoker.worker")


class ProgressBuffer:
    """`waiting`: the notes that are not written, one per running job: a newer one is merged into it."""

    def __init__(self, engine: Engine, emits: EmitBuffer) -> None:
        self._engine = engine
        self._emits = emits
        self.waiting: dict[JobId, Note] = {}
        self.gathered: dict[JobId, dict[str, str]] = {}
        """The metadata of each run as it was noted last."""
        self._withheld: set[JobId] = set()
        self._lock = threading.Lock()

    def put(
        self,
        claim: Claim,
        progress: float | None,
        lines: tuple[str, ...],
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Keep what a handler noted until it is written; from any thread."""
        with self._lock:
            self._merge(Note(claim.id, claim.worker, claim.token, progress, metadata, lines, claim.ref))

    def gather(self, runs: Iterable[Context]) -> None:
        """Keep the metadata that running handlers wrote since the last call; the end of a run stores the rest."""
        before, self.gathered = self.gathered, {}
        for item in (item for run in runs for item in run.items if item.claim.id not in self._withheld):
            job, own = item.claim.id, item.noted.copy()
            if own:
                self.gathered[job] = own
            if own and own != before.get(job):
                metadata = item.executed()
                if metadata is not None and METADATA_WARNING not in metadata:
                    self.put(item.claim, None, (), metadata)

    def _merge(self, note: Note) -> None:
        known = self.waiting.get(note.id)
        if known is not None and known.token == note.token:
            progress = known.progress if note.progress is None else note.progress
            lines = (known.lines + note.lines)[-LONGEST_LOG:]
            metadata = {**(known.metadata or {}), **(note.metadata or {})} or None
            note = msgspec.structs.replace(note, progress=progress, metadata=metadata, lines=lines)
        self.waiting[note.id] = note

    def withhold(self, claim: Claim) -> None:
        """Write nothing of a run until `release`: its block will write it, in its own commit; from any thread."""
        with self._lock:
            self._withheld.add(claim.id)

    def take(self, claim: Claim) -> Note | None:
        """What a run has noted and is not written; from any thread."""
        with self._lock:
            found = self.waiting.get(claim.id)
            self.gathered.pop(claim.id, None)  # a block that is rolled back leaves it to the worker again
            return self.waiting.pop(claim.id) if found is not None and found.token == claim.token else None

    def release(self, claim: Claim) -> None:
        """Go on to write the notes of a run; from any thread."""
        with self._lock:
            self._withheld.discard(claim.id)

    async def write(self, settling: Sequence[Claim] | None = None) -> None:
        """Write what was noted: of all jobs, or only of those about to be settled, whose runs are over.

        What these have emitted comes first: a watcher that reads a fraction in the record has its text behind it.
        """
        with self._lock:
            if settling is None:
                jobs = self.waiting.keys() - self._withheld
            else:
                jobs = self.waiting.keys() & {claim.id for claim in settling}
            taken = [self.waiting.pop(job) for job in jobs]
        if not taken:
            return
        try:
            await self._emits.write(settling)
            await self._engine.jobs.note(taken)
        except (*AWAY, asyncio.CancelledError):
            self._keep(taken)
            raise
        except Exception as error:  # noqa: BLE001 - a rejected note must not delay an outcome
            logger.warning(
                "progress, metadata and log lines of %s are refused by the store and dropped: %s",
                count(len(taken), "job"),
                error,
            )

    def _keep(self, notes: list[Note]) -> None:
        """Put notes back after a failed write; newer ones may exist already."""
        with self._lock:
            newer, self.waiting = self.waiting, {note.id: note for note in notes}
            for note in newer.values():
                self._merge(note)

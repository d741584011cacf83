"""Writes what handlers note on running jobs: progress, metadata, log lines.

Only a job's own worker writes its notes, so the engine remembers them; when the stored notes are others, it merges them
and writes again.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engines.base import Transaction
from stoker.engines.call_times import timed
from stoker.engines.redis import record_format
from stoker.engines.redis.scripts import script
from stoker.engines.redis.settle import read_refs
from stoker.engines.redis.store import MOST_TRIES, Store, refuse
from stoker.engines.redis.stored_job import Notes, salvaged, write_notes
from stoker.engines.shared.facets import Facet
from stoker.model.errors import EngineBusy
from stoker.model.job import LONGEST_LOG, Note, Verdict, noted

_NOTE = script("note")


class NoteWriter(Facet[Store]):
    """Writes notes on running jobs, one after the other."""

    @timed(write=True)
    async def note(self, notes: Sequence[Note], *, tx: Transaction | None = None) -> list[Verdict]:
        refuse(tx)
        self._store.connection.inside()
        return [await _note(self._store, one) for one in notes]


async def _note(store: Store, one: Note) -> Verdict:
    ref = one.ref if type(one.ref) is tuple else (await read_refs(store, [one]))[0]
    if ref is None:
        return Verdict.LOST
    known = store.notes.get((one.id, one.token), ref[4])
    for _ in range(MOST_TRIES):
        before = salvaged(known)
        progress = before.progress if one.progress is None else one.progress
        log = (*before.log, *one.lines)[-LONGEST_LOG:]
        after = write_notes(Notes(progress, noted(before.metadata, one.metadata), log, before.asked))
        fence = record_format.fence(one.worker, one.token)
        instant, letter, stored = await store.run(_NOTE, store.shard(ref[0]), (one.id, fence, known or b"", after))
        store.seen(instant)
        if letter == b"l":
            store.notes.pop((one.id, one.token), None)
            return Verdict.LOST
        if letter == b"a":
            store.remember(one.id, one.token, after)
            return Verdict.APPLIED
        known = stored[0] or None
    raise EngineBusy("others wrote on the same job a hundred times in a row; nothing was written")

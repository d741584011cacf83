"""Each value of the contract sealed for the store, and opened for the app.

What names, orders or counts jobs stays as it is: kinds, queues, keys, tenants, times, the metadata of Stoker itself.
What cannot be opened becomes the reason for that (`CLOSED`): reading a list must not fail, a worker says why it cannot
run a job, and texts stay sealed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from stoker.engines.sealed.seal import Closed, Seal
from stoker.model.archive import Archived
from stoker.model.errors import InvalidInput, PayloadTooLarge
from stoker.model.groups import GROUP, Group, pack_callbacks, unpack_callbacks
from stoker.model.ids import JobId
from stoker.model.job import (
    LARGEST_PAYLOAD,
    LINEAGE,
    ORIGINAL,
    OWN_PRIORITY,
    PARENT,
    Claim,
    Draft,
    Job,
    Note,
    Options,
    Settlement,
)
from stoker.model.kept import Kept, Part
from stoker.model.lifecycle import HELD_BY, HELD_FOR, TOLD, UNFIT_SINCE, UNFIT_WHY
from stoker.model.outbox.consumers import StreamState
from stoker.model.outbox.cursor import Cursor
from stoker.model.outbox.delivery import Advance, Park, Rejection
from stoker.model.outbox.letters import Letter
from stoker.model.outbox.stream import LARGEST_MESSAGE, Entry, Message
from stoker.model.query import CANCEL_REASON
from stoker.model.same_error import readable_part, signature
from stoker.model.schedule import OCCURRENCE, SCHEDULE, Schedule
from stoker.model.seal import (
    CLOSED,
    OWN,
    Envelope,
    as_json,
    check_open,
    read,
    read_json,
    why_closed,
)
from stoker.model.steps import GROUP_WAIT, LARGEST_VALUE, Save, Signal, Step, StepState, box_of, is_page
from stoker.model.unique import ALL_ARGUMENTS, Unique

READABLE = frozenset(
    {
        CANCEL_REASON,
        GROUP,
        HELD_BY,
        HELD_FOR,
        LINEAGE,
        OCCURRENCE,
        ORIGINAL,
        OWN_PRIORITY,
        PARENT,
        SCHEDULE,
        TOLD,
        UNFIT_SINCE,
        UNFIT_WHY,
    }
)
"""Metadata that Stoker writes and that stay readable. Any other is sealed, also a user's whose name begins the same."""

PLAIN = "it is stored in plain text, and Seal(plain=False) takes none"


AnyJob = TypeVar("AnyJob", bound=Job)


class Values:
    """Seals and opens with the keys of one app."""

    def __init__(self, seal: Seal) -> None:
        self.seal = seal
        self.left = 0
        """How many values reseals have met that these keys do not open, and left as they were."""
        self.signature = lru_cache(maxsize=1_000)(self._signature)

    # --- JSON and texts -----------------------------------------------------------------------------------------

    def close_json(self, raw: bytes, field: str, place: bytes, most: int) -> bytes:
        """JSON for the store; a value that is sealed for this place already is left alone.

        Refused is what looks sealed and is not: a reader could not tell it from a value that cannot be opened.
        """
        if (envelope := read_json(raw)) is not None and self._opens(envelope, field, place):
            return raw
        check_open(raw, field.partition("\0")[0])
        sealed = as_json(self.seal.close(raw, field, place))
        if len(sealed) > most:
            name = field.partition("\0")[0]
            why = f"must be at most {most} bytes when it is sealed, which adds a third and some bytes to {len(raw)}"
            raise PayloadTooLarge(name, f"{len(sealed)} bytes", why)
        return sealed

    def open_json(self, raw: bytes, field: str, places: Iterable[bytes]) -> bytes:
        """JSON from the store. Raises `Closed`, also for plain JSON where the app takes none."""
        sealed = read_json(raw)
        if sealed is not None:
            return self.seal.open(sealed, field, places)
        if self.seal.plain:
            return raw
        raise Closed(PLAIN)

    def try_json(self, raw: bytes, field: str, places: Iterable[bytes]) -> bytes:
        """JSON from the store; of what cannot be opened, why."""
        try:
            return self.open_json(raw, field, places)
        except Closed as error:
            return as_json(f"{CLOSED}{error}")

    def close_text(self, text: str, field: str, place: bytes) -> str:
        """A text for the store; one that is sealed for this place already is left alone."""
        if (sealed := read(text)) is not None and self._opens(sealed, field, place):
            return text
        return self.seal.close(text.encode(errors="replace"), field, place)

    def _opens(self, sealed: Envelope, field: str, place: bytes) -> bool:
        """Was a value sealed for this place? A text that only looks like it is the user's own, and is sealed."""
        try:
            self.seal.open(sealed, field, [place])
        except Closed:
            return False
        return True

    def open_text(self, text: str, field: str, places: Iterable[bytes]) -> str:
        """A text from the store for people; one that cannot be opened as it is."""
        with suppress(Closed):
            return self._text(text, field, places)
        return text

    def _text(self, text: str, field: str, places: Iterable[bytes]) -> str:
        """A text from the store for a handler. Raises `Closed`, also for a plain one where the app takes none."""
        sealed = read(text)
        if sealed is not None:
            return self.seal.open(sealed, field, places).decode(errors="replace")
        if self.seal.plain:
            return text
        raise Closed(PLAIN)

    def close_error(self, text: str, place: bytes, job: JobId | None = None) -> str:
        """An error for the store: class and place stay readable. One that is sealed for this place is left alone."""
        sealed = _sealed_error(text)
        if sealed is not None and self._opens(sealed, "error", place):
            begin = self._readable(self.open_error(text, [place]))
            if text.rpartition("\n")[0] == begin:  # nothing was put before it
                return text
        envelope = self.seal.close(text.encode(errors="replace"), "error", place, job)
        return f"{self._readable(text)}\n{envelope}"

    def _readable(self, error: str) -> str:
        """What stays readable of an error."""
        found = signature(error)
        return readable_part(found, self.seal.letters(found))

    def open_error(self, text: str, places: Sequence[bytes] = ()) -> str:
        """An error from the store; without a place that of the job which it names."""
        sealed = _sealed_error(text)
        if sealed is None or not (places or sealed.job):
            return text
        with suppress(Closed):
            return self.seal.open(sealed, "error", places or [sealed.job or b""]).decode(errors="replace")
        return text

    def _signature(self, plain: str) -> str:
        """The signature of an error as the store knows it."""
        return signature(readable_part(plain, self.seal.letters(plain)))

    def close_map(self, named: Mapping[str, str], place: bytes, field: str = "meta") -> dict[str, str]:
        """Metadata or headers for the store; what Stoker itself writes stays readable."""
        return {
            name: text if name in READABLE else self.close_text(text, f"{field}\0{name}", place)
            for name, text in named.items()
        }

    def open_map(self, named: Mapping[str, str], places: Sequence[bytes], field: str = "meta") -> dict[str, str]:
        """Metadata or headers from the store, for people."""
        return {
            name: self.open_text(text, f"{field}\0{name}", places) for name, text in named.items() if name != LINEAGE
        }

    def _map(self, named: Mapping[str, str], places: Sequence[bytes], field: str = "meta") -> dict[str, str]:
        """Metadata or headers from the store, for a handler. Raises `Closed`."""
        return {
            name: text
            if name in READABLE or (name.startswith(OWN) and read(text) is None)  # what another release writes
            else self._text(text, f"{field}\0{name}", places)
            for name, text in named.items()
            if name != LINEAGE
        }

    # --- drafts -------------------------------------------------------------------------------------------------

    def close_draft(self, draft: Draft, place: bytes | None = None) -> Draft:
        """A draft, and those behind it. `place`: it is no job yet, but the template of a schedule."""
        bound = place or draft.job_id
        unique = None if draft.unique is None else self._hidden(draft.unique)
        field = _payload_field(draft.kind, draft.tenant)
        return replace(
            draft,
            payload=self.close_json(draft.payload, field, bound, LARGEST_PAYLOAD),
            unique=unique,
            options=self._close_options(draft, unique, bound, place),
        )

    def _close_options(self, draft: Draft, unique: Unique | None, bound: bytes, place: bytes | None) -> Options:
        options = draft.options
        metadata = None if options.metadata is None else self.close_map(options.metadata, bound)
        if unique is not None and unique.mode == "replace" and place is None:  # another job may take its place
            metadata = {**(metadata or {}), LINEAGE: self.seal.prove(_subject(unique, draft.kind), [draft.job_id])}
        label = None if options.label is None else self.close_text(options.label, "label", bound)
        if metadata is None and label is None and not options.then:
            return options
        then = tuple(self.close_draft(one, _behind(place, at)) for at, one in enumerate(options.then))
        return replace(options, metadata=metadata, label=label, then=then)

    def _hidden(self, unique: Unique) -> Unique:
        """The key as it is stored: one of all arguments would let a reader of the store try out arguments."""
        if not unique.digest and not unique.key.startswith(ALL_ARGUMENTS):
            return unique
        return replace(unique, key=self.seal.hidden(unique.key), digest=False)

    def open_draft(self, draft: Draft, place: bytes | None = None) -> Draft:
        """A draft from the store, and those behind it. Raises `Closed`."""
        places = [place or draft.job_id]
        payload = self.open_json(draft.payload, _payload_field(draft.kind, draft.tenant), places)
        return replace(draft, payload=payload, options=self._open_options(draft.options, places, place))

    def _open_options(self, options: Options, places: Sequence[bytes], place: bytes | None = None) -> Options:
        if options.metadata is None and options.label is None and not options.then:
            return options
        metadata = None if options.metadata is None else self._map(options.metadata, places) or None
        label = None if options.label is None else self.open_text(options.label, "label", places)
        then = tuple(self.open_draft(one, _behind(place, at)) for at, one in enumerate(options.then))
        return replace(options, metadata=metadata, label=label, then=then)

    def places(self, job: Job | Claim) -> list[bytes]:
        """The jobs for which values of a job may have been sealed: itself, and those that it is a copy of."""
        metadata = job.options.metadata
        if metadata is None or LINEAGE not in metadata:
            return [job.id]
        subjects = [job.id, *(() if job.unique is None else (_subject(job.unique, job.kind),))]
        return [job.id, *self.seal.proven(metadata[LINEAGE], subjects)]

    def lineage(self, job: Job, copy: JobId) -> str:
        """What says of a copy for which jobs its values were sealed; refused where the metadata have no room for it."""
        origins = dict.fromkeys(self.places(job)[::-1])
        proof = self.seal.prove(copy, list(origins))
        try:
            replace(job.options, metadata={**(job.options.metadata or {}), LINEAGE: proof, ORIGINAL: "-" * 36})
        except InvalidInput:
            why = "has no room left in its metadata to say what it is a copy of; enqueue a new job with its arguments"
            raise InvalidInput("job", job.id.hex(), why) from None
        return proof

    # --- jobs ---------------------------------------------------------------------------------------------------

    def open_claim(self, claim: Claim) -> Claim:
        """A claim; if its arguments, its metadata or the jobs behind it cannot be opened, they are all left sealed."""
        places = self.places(claim)
        payload, options, metadata = claim.payload, claim.options, claim.metadata
        try:
            options = self._open_options(claim.options, places)
            metadata = None if metadata is None else self._map(metadata, places)
            payload = self.open_json(payload, _payload_field(claim.kind, claim.tenant), places)
        except Closed as error:
            payload = as_json(f"{CLOSED}{error}")
        return replace(
            claim,
            payload=payload,
            options=options,
            metadata=metadata,
            last_error=None if claim.last_error is None else self.open_error(claim.last_error, places),
            rows=None if claim.rows is None else tuple(self.open_rows(claim.rows, places)),
        )

    def open_job(self, job: AnyJob) -> AnyJob:
        """A job as it is read; what cannot be opened stays sealed."""
        places = self.places(job)
        options = job.options
        with suppress(Closed):
            options = self._open_options(options, places)
        return replace(
            job,
            payload=self.try_json(job.payload, _payload_field(job.kind, job.tenant), places),
            result=None if job.result is None else self.try_json(job.result, "result", places),
            options=options,
            metadata=self.open_map(job.metadata, places),
            last_error=None if job.last_error is None else self.open_error(job.last_error, places),
            history=tuple(replace(one, error=self.open_error(one.error, places)) for one in job.history),
            log=tuple(self.open_text(line, "log", places) for line in job.log),
            known_as=None if _sealed_error(job.last_error or "") is None else signature(job.last_error),
        )

    def close_archived(self, one: Archived) -> Archived:
        """A job of another store, for this one; one that was exported sealed is opened first."""
        record, steps = one.record, one.steps
        if read_json(record.payload) is not None:
            steps = self.open_rows(steps, self.places(record))
            record = replace(self.open_job(record), known_as=None)
        draft = self.close_draft(
            Draft(
                record.id,
                record.kind,
                payload=record.payload,
                options=record.options,
                unique=record.unique,
                tenant=record.tenant,
            )
        )
        errors = {
            text: self.close_error(text, record.id, record.id) for text in (entry.error for entry in record.history)
        }
        if record.last_error is not None and record.last_error not in errors:
            errors[record.last_error] = self.close_error(record.last_error, record.id, record.id)
        closed = replace(
            record,
            payload=draft.payload,
            options=draft.options,
            unique=draft.unique,
            result=None
            if record.result is None
            else self.close_json(record.result, "result", record.id, LARGEST_RESULT),
            metadata=self.close_map(record.metadata, record.id),
            last_error=None if record.last_error is None else errors[record.last_error],
            history=tuple(replace(entry, error=errors[entry.error]) for entry in record.history),
            log=tuple(self.close_text(line, "log", record.id) for line in record.log),
        )
        return Archived(closed, [self.close_step(record.id, row) for row in steps])

    def close_settlement(self, one: Settlement) -> Settlement:
        """How a claim ends, for the store."""
        return replace(
            one,
            result=None if one.result is None else self.close_json(one.result, "result", one.id, LARGEST_RESULT),
            error=None if one.error is None else self.close_error(one.error, one.id, one.id),
            metadata=None if one.metadata is None else self.close_map(one.metadata, one.id),
            followups=tuple(map(self.close_draft, one.followups)),
            steps=tuple(self.close_step(one.id, step) for step in one.steps),
        )

    def close_note(self, note: Note) -> Note:
        """What a running handler adds to its job, for the store."""
        return replace(
            note,
            metadata=None if note.metadata is None else self.close_map(note.metadata, note.id),
            lines=tuple(self.close_text(line, "log", note.id) for line in note.lines),
        )

    def payload_of(self, job: Job, payload: bytes, place: JobId) -> bytes:
        """Other arguments for a job, or for its copy."""
        return self.close_json(payload, _payload_field(job.kind, job.tenant), place, LARGEST_PAYLOAD)

    def resealed(self, job: Job) -> Job | None:
        """A stored job with its values under the current key; None: they are. What cannot be opened stays as it is."""
        opened, places = self.open_job(job), self.places(job)
        errors: dict[str, str] = {}

        def error(text: str) -> str:
            if text not in errors:
                errors[text] = self._again_error(text, places, job.id, job.id)
            return errors[text]

        after = replace(
            job,
            payload=self._again_json(job.payload, opened.payload, _payload_field(job.kind, job.tenant), job.id),
            result=None if job.result is None else self._again_json(job.result, opened.result or b"", "result", job.id),
            options=self._again_options(job, opened.options, places),
            metadata=self._again_map(job.metadata, "meta", job.id, places),
            last_error=None if job.last_error is None else error(job.last_error),
            history=tuple(replace(one, error=error(one.error)) for one in job.history),
            log=tuple(self._again(line, "log", job.id, places) for line in job.log),
        )
        return None if after == job else after

    def _is_current(self, sealed: Envelope | None) -> bool:
        return sealed is not None and sealed.key == self.seal.current

    def _again_json(self, stored: bytes, opened: bytes, field: str, place: bytes) -> bytes:
        if self._is_current(read_json(stored)):
            return stored
        if why_closed(opened) is not None:
            self.left += 1
            return stored
        return self.close_json(opened, field, place, LARGEST_RESULT)

    def _again(self, text: str, field: str, place: bytes, places: Sequence[bytes]) -> str:
        sealed, opened = read(text), self.open_text(text, field, places)
        return text if self._stays(sealed, text, opened) else self.close_text(opened, field, place)

    def _again_error(self, text: str, places: Sequence[bytes], place: bytes, job: JobId | None = None) -> str:
        sealed, opened = _sealed_error(text), self.open_error(text, places)
        return text if self._stays(sealed, text, opened) else self.close_error(opened, place, job)

    def _stays(self, sealed: Envelope | None, text: str, opened: str) -> bool:
        """Is a text under the current key, or one that these keys do not open?"""
        if sealed is None or self._is_current(sealed):
            return sealed is not None
        self.left += opened == text
        return opened == text

    def _again_map(
        self, stored: Mapping[str, str], field: str, place: bytes, places: Sequence[bytes]
    ) -> dict[str, str]:
        return {
            name: text if name in READABLE else self._again(text, f"{field}\0{name}", place, places)
            for name, text in stored.items()
        }

    def _again_options(self, job: Job, opened: Options, places: Sequence[bytes]) -> Options:
        """Options with all values under the current key, or as they are if they are, or cannot be opened."""
        if all(map(self._is_current, _sealed_in(job.options))):
            return job.options
        if opened is job.options:
            self.left += 1
            return opened
        draft = self.close_draft(Draft(job.id, job.kind, options=opened))
        if len(places) == 1 or draft.options.metadata is None:
            return draft.options
        return replace(draft.options, metadata={**draft.options.metadata, LINEAGE: self.seal.prove(job.id, places[1:])})

    def resealed_rows(self, job: Job, rows: Iterable[Step]) -> tuple[tuple[Step, Step], ...]:
        """Rows that are not under the current key, each with its form under it."""
        places, found = self.places(job), []
        for row in rows:
            if row.value is None or _is_of_store(row):
                continue
            opened = self._open_row(row, places).value or b""
            value = self._again_json(row.value, opened, _row_field(row), job.id)
            if value != row.value:
                found.append((row, replace(row, value=value)))
        return tuple(found)

    def resealed_kept(self, part: Part, kept: Kept) -> Kept:
        """The values of a row beside the jobs under the current key; what cannot be opened stays as it is."""
        if part is Part.GROUPS:
            return kept._replace(body=self._again_callbacks(kept.body or b""))
        place, turn = _message_place(kept.of, kept.id), turn_place(kept.of, kept.consumer)
        body, headers, error = kept.values
        if body:
            body = self._again_json(body, self.try_json(body, "message", [place]), "message", place)
        if headers:
            stored = msgspec.json.decode(headers, type=dict[str, str])
            after = self._again_map(stored, "header", place, [place])
            headers = headers if after == stored else msgspec.json.encode(after).decode()
        if error:
            sealed = _sealed_error(error)
            job = (None if sealed is None else sealed.job) or bytes(16)  # a plain one is of no job that is known
            of_kind = part is Part.KINDS
            error = self._again_error(
                error, [job] if of_kind else [turn], job if of_kind else turn, job if of_kind else None
            )
        return kept._replace(body=body, headers=headers, error=error)

    def _again_callbacks(self, stored: bytes) -> bytes:
        callbacks = unpack_callbacks(stored)
        drafts = {name: draft for name in ("then", "on_failure", "on_finish") if (draft := getattr(callbacks, name))}
        again: dict[str, Draft] = {}
        for name, draft in drafts.items():
            if not self.is_current(draft):
                try:
                    again[name] = self.close_draft(self.open_draft(draft))
                except Closed:
                    self.left += 1
        return pack_callbacks(replace(callbacks, **again)) if again else stored

    def is_current(self, draft: Draft) -> bool:
        """Is a stored draft sealed with the current key, and all behind it?"""
        return all(map(self._is_current, (read_json(draft.payload), *_sealed_in(draft.options))))

    # --- steps --------------------------------------------------------------------------------------------------

    def close_step(self, job: JobId, row: Step) -> Step:
        """A row of a job, for the store."""
        if row.value is None:
            return row
        return replace(row, value=self.close_json(row.value, _row_field(row), job, LARGEST_VALUE))

    def close_save(self, save: Save) -> Save:
        """Rows of a running job and the jobs that it calls, for the store."""
        return replace(
            save,
            steps=tuple(self.close_step(save.id, row) for row in save.steps),
            drafts=tuple(map(self.close_draft, save.drafts)),
        )

    def close_signal(self, signal: Signal) -> Signal:
        """A value for a wait, for the store, which chooses the row."""
        value = self.close_json(signal.value, _box_field(signal.name), signal.id, LARGEST_VALUE)
        return replace(signal, value=value)

    def open_rows(self, rows: Iterable[Step], places: Sequence[bytes]) -> list[Step]:
        """Rows of a job from the store; of what cannot be opened, why."""
        return [self._open_row(row, places) for row in rows]

    def _open_row(self, row: Step, places: Sequence[bytes]) -> Step:
        if _is_of_store(row):
            return row
        if row.value is None:
            return row if self.seal.plain else replace(row, value=as_json(f"{CLOSED}{PLAIN}"))
        try:
            return replace(row, value=self.open_json(row.value, _row_field(row), places))
        except Closed:  # a signal is not sealed for its row
            return replace(row, value=self.try_json(row.value, _box_field(row.name), places))

    # --- groups and schedules -----------------------------------------------------------------------------------

    def close_group(self, group: Group) -> Group:
        """A new group, for the store."""
        return replace(
            group,
            then=None if group.then is None else self.close_draft(group.then),
            on_failure=None if group.on_failure is None else self.close_draft(group.on_failure),
            on_finish=None if group.on_finish is None else self.close_draft(group.on_finish),
        )

    def open_group(self, group: Group) -> Group:
        """A group from the store; callbacks that cannot be opened stay sealed."""
        return replace(
            group,
            then=self.shown_draft(group.then),
            on_failure=self.shown_draft(group.on_failure),
            on_finish=self.shown_draft(group.on_finish),
        )

    def shown_draft(self, draft: Draft | None) -> Draft | None:
        """A stored draft, opened if it can be."""
        if draft is not None:
            with suppress(Closed):
                return self.open_draft(draft)
        return draft

    def open_schedule(self, schedule: Schedule) -> Schedule:
        """A schedule from the store; a worker that cannot open its template leaves it to others."""
        try:
            template = self.open_draft(schedule.template, schedule_place(schedule.name))
        except Closed as error:
            template = replace(schedule.template, payload=as_json(f"{CLOSED}{error}"))
        return replace(schedule, template=template)

    # --- stacks ---------------------------------------------------------------------------------------------------

    def close_stack(self, report: bytes) -> bytes:
        """Where handlers stand, for the store; the report names its worker itself."""
        return as_json(self.seal.close(report, "stacks", b""))

    def open_stack(self, stored: bytes | str) -> bytes | None:
        """What `close_stack` wrote, or a plain report; None: it cannot be opened."""
        raw = stored.encode() if isinstance(stored, str) else bytes(stored)
        with suppress(Closed):
            return self.open_json(raw, "stacks", [b""])
        return None

    # --- messages -----------------------------------------------------------------------------------------------

    def close_entry(self, stream: str, entry: Entry) -> Entry:
        """A message, for the store."""
        place = _message_place(stream, entry.id)
        return replace(
            entry,
            payload=self.close_json(entry.payload, "message", place, LARGEST_MESSAGE),
            headers=self.close_map(entry.headers, place, "header"),
        )

    def open_message(self, stream: str, message: Message) -> Message:
        """A message from the store; one that cannot be opened stays sealed."""
        if message.payload is None:
            return message
        places = [_message_place(stream, message.id)]
        headers = message.headers
        try:
            headers = self._map(headers, places, "header")
            payload = self.open_json(message.payload, "message", places)
        except Closed as error:
            payload = as_json(f"{CLOSED}{error}")
        return replace(message, payload=payload, headers=headers)

    def close_letter(self, letter: Letter) -> Letter:
        """A letter, for the store."""
        place = _message_place(letter.stream, letter.id)
        return replace(
            letter,
            payload=self.close_json(letter.payload, "message", place, LARGEST_MESSAGE) if letter.payload else b"",
            headers=self.close_map(letter.headers, place, "header"),
            reason=self.close_error(letter.reason, turn_place(letter.stream, letter.consumer)),
        )

    def open_letter(self, letter: Letter) -> Letter:
        """A letter from the store; what cannot be opened stays sealed."""
        places = [_message_place(letter.stream, letter.id)]
        return replace(
            letter,
            payload=self.try_json(letter.payload, "message", places) if letter.payload else b"",
            headers=self.open_map(letter.headers, places, "header"),
            reason=self.open_error(letter.reason, [turn_place(letter.stream, letter.consumer)]),
        )

    def close_advance(self, advance: Advance) -> Advance:
        """The result of a delivery, for the store."""
        place = turn_place(advance.stream, advance.consumer)
        return replace(
            advance,
            last_error=None if advance.last_error is None else self.close_error(advance.last_error, place),
            report=None if advance.report is None else self.close_error(advance.report, place),
            letters=tuple(map(self.close_letter, advance.letters)),
            parks=tuple(Park(one.key, self.close_error(one.reason, place)) for one in advance.parks),
            returned=tuple(Rejection(one.number, self.close_error(one.reason, place)) for one in advance.returned),
        )

    def open_cursor(self, cursor: Cursor) -> Cursor:
        """A cursor from the store."""
        if cursor.last_error is None:
            return cursor
        return replace(
            cursor, last_error=self.open_error(cursor.last_error, [turn_place(cursor.stream, cursor.consumer)])
        )

    def open_stream(self, state: StreamState) -> StreamState:
        """A stream from the store, with its cursors."""
        cursors = tuple(replace(one, cursor=self.open_cursor(one.cursor)) for one in state.cursors)
        return replace(state, cursors=cursors)


LARGEST_RESULT = LARGEST_PAYLOAD * 2
"""Bytes of a sealed result: a store takes any, and the codec has judged the plain one."""


def _sealed_in(options: Options) -> Iterator[Envelope | None]:
    """The sealed values of options and of the drafts behind a job; None for one that is plain."""
    yield from (read(text) for name, text in (options.metadata or {}).items() if name not in READABLE)
    if options.label is not None:
        yield read(options.label)
    for draft in options.then:
        yield read_json(draft.payload)
        yield from _sealed_in(draft.options)


def _sealed_error(text: str) -> Envelope | None:
    """The sealed value of an error, which is its last line."""
    return read(text.rpartition("\n")[2])


def _payload_field(kind: str, tenant: str | None) -> str:
    """Arguments are bound to the kind and the tenant of their job, too: both are stored in plain text."""
    return f"payload\0{kind}\0{tenant or ''}"


def _row_field(row: Step) -> str:
    """What the value of a row that a run writes is bound to: also whether it is a result, a failure or a question."""
    return f"row\0{row.state.name}\0{row.name}"


def _box_field(name: str) -> str:
    """What a signal is bound to: who signals `approval` does not know which use of it waits."""
    return f"step\0{box_of(name)}"


def _is_of_store(row: Step) -> bool:
    """Does a row hold no value of the app? An open wait that asks nothing, an empty page, the end of called jobs."""
    if row.value is None:
        return row.state is StepState.WAITING or is_page(row.name)
    return row.value == b"null" and row.name.startswith(GROUP_WAIT)


def _subject(unique: Unique, kind: str) -> bytes:
    return f"key\0{unique.slot(kind)}".encode()


def schedule_place(name: str) -> bytes:
    """What the template of a schedule is bound to."""
    return f"schedule\0{name}".encode()


def _behind(place: bytes | None, at: int) -> bytes | None:
    """What a draft behind a template is bound to; a job has an id of its own."""
    return None if place is None else place + b"\0%d" % at


def _message_place(stream: str, message: bytes) -> bytes:
    return f"stream\0{stream}\0".encode() + message


def turn_place(stream: str | None, consumer: str | None) -> bytes:
    """What the reason of a failed delivery is bound to: a store takes it from one turn to several letters."""
    return f"turn\0{stream}\0{consumer}".encode()

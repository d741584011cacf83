"""Relay messages to a task: each message becomes a job, of this store or of any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from stoker.engines.base import Transaction
from stoker.model import ids
from stoker.model.errors import InvalidInput, InvalidOption, UnknownTask
from stoker.model.job import Draft, Stored, check_id
from stoker.model.outcome import Reject
from stoker.model.time import HOUR, Span
from stoker.outbox.message import Message
from stoker.outbox.relays.headers import headers_of
from stoker.task import Task

if TYPE_CHECKING:
    from stoker.app import Stoker

SHORTEST_KEEP: Final[Span] = HOUR
"""A done job stays at least so long, so that a message that is relayed again meets it."""


class ToTask:
    """Makes a job of each message; the job has the message's id, so a repeated message meets the stored job.

    Of a task the body is the one argument. Of an app the message's `type` is the job's kind and the body its arguments:
    an object means keywords, a list positionals. In the outbox's own app the jobs and the cursor are one commit.
    """

    def __init__(self, target: Task[..., Any] | Stoker) -> None:
        self._task: Task[..., Any] | None = None
        if isinstance(target, Task):
            self._task, self.app = target, target.app
            self._check_call(target)
        else:
            self.app = target
        self._keeps: dict[str, Span] = {}

    def __repr__(self) -> str:
        return f"<ToTask {self.app!r}>" if self._task is None else f"<ToTask {self._task.name}>"

    @staticmethod
    def _check_call(task: Task[..., Any]) -> None:
        if task.tx is not None:
            raise InvalidOption("tx", task.tx, "cannot be given to a relay, which stores jobs later")
        try:
            task.signature.parameters.bind(None)
        except TypeError as error:
            raise InvalidInput(f"{task.name}()", task, f"is called with the body of a message: {error}") from None

    def joins(self, app: Stoker) -> bool:
        """Is the target the store of this app?"""
        return self.app is app

    async def open(self) -> None:
        """Read how long the target's queues keep done jobs."""
        engine = await self.app.engine()
        self._keeps = {queue.name: queue.keep_done for queue in await engine.control.queues()}

    async def publish(self, messages: Sequence[Message[Any]]) -> None:
        """Store the jobs, and keep each for an hour at least."""
        await self._store([self._kept(self._draft(one)) for one in messages])

    async def publish_in(self, messages: Sequence[Message[Any]], tx: Transaction) -> None:
        """Store the jobs in a transaction."""
        await self._store([self._draft(one) for one in messages], tx)

    async def close(self) -> None:
        """The app closes its engines itself."""

    async def _store(self, drafts: list[Draft], tx: Transaction | None = None) -> None:
        """Store jobs that are not there yet; one of another kind under the id of a message is not that message's."""
        receipts = await self.app.enqueue_many(drafts, tx=tx)
        met = {
            draft.job_id: draft for draft, one in zip(drafts, receipts, strict=True) if one.stored is Stored.EXISTING
        }
        if not met:
            return
        for job in await (await self.app.engine()).operator.get(list(met)):
            if job is not None and job.kind != met[job.id].kind:
                why = f"a job of kind {job.kind} has its id; delete that job, then replay the message"
                raise Reject(f"message {ids.text(job.id)} cannot become a job of kind {met[job.id].kind}: {why}")

    # --- drafts -------------------------------------------------------------------------------------------------

    def _draft(self, message: Message[Any]) -> Draft:
        if message.raw:
            raise Reject(f"message {message.id} is raw bytes of type {message.type!r}; the arguments of a job are JSON")
        try:
            draft = self._call(message)
            metadata = {**(draft.options.metadata or {}), **headers_of(message)}
            options = msgspec.structs.replace(draft.options, metadata=metadata)
            check_id(job := ids.parse(message.id))
        except (InvalidInput, UnknownTask) as error:
            raise Reject(f"message {message.id} cannot become a job: {error}") from error
        return msgspec.structs.replace(draft, job_id=job, options=options)

    def _call(self, message: Message[Any]) -> Draft:
        body = Raw(message.payload)
        task = self._task
        if task is None:
            return self.app.draft(message.type, body)
        if not callable(task.options.unique):
            return task.draft(body)
        [name, *_] = task.signature.parameters.parameters  # its key is a function of the decoded arguments
        args, kwargs = task.signature.decode(msgspec.json.encode({name: body}))
        return task.draft(*args, **kwargs)

    def _kept(self, draft: Draft) -> Draft:
        keep = draft.options.keep
        if keep is None:
            keep = self._keeps.get(draft.queue, self.app.root().keep_done)
        if keep >= SHORTEST_KEEP:
            return draft
        return msgspec.structs.replace(draft, options=msgspec.structs.replace(draft.options, keep=SHORTEST_KEEP))

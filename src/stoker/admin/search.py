"""What a search in payloads and errors may find: below the role admin nothing that is masked, and without a trace.

A page must not tell a right guess from a wrong one, so where a search is bounded the store is asked without the texts,
and they are looked for here: neither the jobs, nor their number, nor where a page ends depends on what is hidden.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging

from msgspec.structs import replace

from stoker.admin.audit import audited
from stoker.admin.context import OperatorContext
from stoker.model import ids
from stoker.model.errors import EngineBusy, EngineReadOnly, EngineRefused
from stoker.model.filter import Filter
from stoker.model.job import Job
from stoker.model.query import LARGEST_PAGE, LONGEST_WALK, Page, Query, cursor_behind, has_texts, matches
from stoker.model.redact import MASK
from stoker.model.time import MINUTE, Instant

PATIENCE = 0.5
"""Seconds that a search waits for its entry in the audit log: another process may write for long."""

UNBROKEN = 64 * 1024
"""Letters of payloads and errors that are looked through at a stretch; to mask so many takes about 15 ms."""

CUT = "\0"
"""In the place of a mask: no payload and no filter has this letter."""

logger = logging.getLogger("stoker.audit")


async def search(context: OperatorContext, query: Query) -> Page:
    """A page of the jobs that match a query and that the operator may find; reads one page of the engine."""
    engine = await context.engine()
    if not query.has_texts or context.searches_as == "admin":
        return await engine.operator.find(query)
    plain = replace(query, text=None, payload=None, error=None, limit=LARGEST_PAGE)
    found: list[Job] = []
    walked = unbroken = 0
    while True:
        page = await engine.operator.find(plain)
        for at, job in enumerate(page.jobs, 1):
            unbroken += len(job.payload) + len(job.last_error or "")
            if unbroken > UNBROKEN:
                await asyncio.sleep(0)  # others have a turn, and the caller may give up
                unbroken = 0
            if not _shows(context, job, query):
                continue
            found.append(job)
            if len(found) == query.limit:
                over = page.cursor is None and at == len(page.jobs)
                return Page(found, None if over else cursor_behind(job, query), walked + at)
        walked += page.scanned
        if page.cursor is None or walked >= LONGEST_WALK:
            return Page(found, page.cursor, walked)
        plain = replace(plain, cursor=page.cursor)


def meets(context: OperatorContext, job: Job, query: Query, now: Instant) -> bool:
    """Does a job match a query, and may the operator find it by its texts?"""
    if not query.has_texts or context.searches_as == "admin":
        return matches(job, query, now)
    return matches(job, replace(query, text=None, payload=None, error=None), now) and _shows(context, job, query)


def _shows(context: OperatorContext, job: Job, query: Query) -> bool:
    """Does a job have the texts where nothing of it is masked?

    Payloads that the asker may not reveal, because of its role or the job's queue, have none. What stands for a secret
    is not looked into: else it would be found where the secret has the same letters, and only there. What is shown is
    stored too, so that few jobs need masking.
    """
    errors_only = context.role == "read" or bool(context.queues and job.queue not in context.queues)
    if not has_texts(job, query, errors_only=errors_only):
        return False
    mask = context.redact
    error = None if job.last_error is None else mask.text(job.last_error).replace(MASK, CUT)
    payload = mask.json(job.payload).replace(MASK.encode(), CUT.encode())
    return has_texts(replace(job, payload=payload, last_error=error), query, errors_only=errors_only)


async def noted(context: OperatorContext, filter_: Filter) -> None:
    """Write to the audit log that a person looks into payloads: once a minute at most, and not for what."""
    by = context.signed()
    if filter_.payload is None or by is None:
        return
    what = f"jobs {filter_.without_payload}"
    # A lock that is never released lets one process in a minute write.
    name = f"stoker.search.{hashlib.sha256(by.who.encode()).hexdigest()[:32]}"
    try:
        engine = await context.engine()
        async with asyncio.timeout(PATIENCE):
            if await engine.control.lock(name, ids.text(context.app.mint()), MINUTE):
                await audited(context, "jobs.search", what)
    except (EngineReadOnly, EngineRefused, EngineBusy, TimeoutError) as error:
        text = "%s (%s) searched payloads of %s. The store takes no writes now (%s): this line stands for its entry."
        logger.warning(text, by.who, by.way, what, type(error).__name__)

"""Around every job: what Django does around every request, so that no job meets a connection the server has ended."""

from __future__ import annotations

from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections

from stoker.context import Context
from stoker.hooks import Next, PlainNext


def fresh_connections(call: PlainNext[Context, Any], context: Context) -> Any:
    """Close connections that are too old or broken, in the thread or process of a plain handler."""
    close_old_connections()
    try:
        return call(context)
    finally:
        close_old_connections()


def close_old_connections() -> None:
    """Django's own, but for connections in a block: those of a `TestCase`, in whose thread a kit runs handlers."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


async def fresh_connections_on_loop(call: Next[Context, Any], context: Context) -> Any:
    """Give an async handler a thread for its queries, as an ASGI request has, and close what it opened there."""
    task = context.runtime.app.find_task(context.kind)
    if task is None or not task.is_async:
        return await call(context)
    threads = ThreadSensitiveContext()
    async with threads:
        try:
            return await call(context)
        finally:
            if threads in SyncToAsync.context_to_thread_executor:  # it has asked for something
                await sync_to_async(connections.close_all)()

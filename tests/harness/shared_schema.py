"""A schema for many cases: made once, emptied before each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from stoker.engines.base import Engine


class SharedSchema:
    """A schema with Stoker's tables as soon as an engine has been opened on it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.schema = f"t_{uuid.uuid4().hex}"
        self._keeper = psycopg.connect(url, autocommit=True)

    def empty(self) -> str:
        """Remove every row; answers the schema's name. Deleting a handful is quicker than making forty new files."""
        tables = self._keeper.execute(
            "select relname from pg_class where relnamespace = to_regnamespace(%s) and relkind = 'r'"
            " and relname <> 'stoker_migration'",
            (self.schema,),
        ).fetchall()
        if tables:
            self._keeper.execute(";".join(f'delete from "{self.schema}"."{table}"' for (table,) in tables).encode())
        return self.schema

    async def miscount(self, _: Engine, queue: str, name: str, running: int) -> None:
        """Make the number of running jobs of a subqueue wrong (`harness.Miscount`)."""
        changed = self._keeper.execute(
            f'update "{self.schema}".subqueue set running = %s where queue = %s and name = %s'.encode(),
            (running, queue, name),
        )
        assert changed.rowcount == 1

    def close(self) -> None:
        self._keeper.execute("set lock_timeout = '10s'")
        self._keeper.execute(f"drop schema if exists {self.schema} cascade".encode())
        self._keeper.close()


@contextmanager
def shared_schema(url: str) -> Iterator[SharedSchema]:
    found = SharedSchema(url)
    try:
        yield found
    finally:
        found.close()

"""The embedded engine: one SQLite file, many processes on one host."""

from stoker.engines.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]

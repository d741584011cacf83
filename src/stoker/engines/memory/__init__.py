"""The memory engine: a store inside this process, lost when the process exits.

One `Store` holds everything under one lock; each `MemoryEngine` on it serves one event loop. A call takes the lock,
reads the clock once, changes the records and releases the lock, without awaiting inside. So each call is atomic, and
engines in other threads see all of it or nothing.
"""

from stoker.engines.memory.engine import MemoryEngine

__all__ = ["MemoryEngine"]

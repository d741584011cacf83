"""The store in this process: complete, fast, and gone when the process exits.

One `Store` holds everything under one lock; every `MemoryEngine` on it is a thin async face for one event loop. A call
takes the lock, reads the clock once, changes the records and lets go, without ever waiting inside: so each call is
atomic, and twins in other threads see all of it or nothing.
"""

from stoker.engines.memory.engine import MemoryEngine

__all__ = ["MemoryEngine"]

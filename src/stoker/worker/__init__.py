"""The worker: claims jobs, runs their handlers and settles the outcomes.

`worker` makes the parts and `main` runs a worker as a process; `fetcher` decides what to claim, `runner` runs jobs in
slots, `running` interrupts them, `store_loop` settles and claims, `lease` renews the lease in a thread of its own,
`maintenance` does the rest. `docs/explanation/the-worker.md` draws them.
"""

from stoker.worker.worker import Worker

__all__ = ["Worker"]

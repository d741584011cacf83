"""The worker: takes jobs, runs handlers, settles what came of them.

`worker` holds the parts together, `fetcher` decides what to take, `runner` runs one job, `settler` gathers what to
write, `keeper` keeps the lease from a thread of its own, `reaper` takes over from the dead, `janitor` tidies up,
`executors` run what cannot run on the loop, `supervisor` looks after several worker processes.
"""

from stoker.worker.worker import Worker

__all__ = ["Worker"]

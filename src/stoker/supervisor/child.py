"""The child's side of a worker process: reports to its supervisor, obeys it, ends without it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from stoker.app_path import load
from stoker.codec.error_text import describe_error, text_of
from stoker.engines import notices
from stoker.model.errors import StokerError
from stoker.model.time import SECOND
from stoker.subprocesses import Parent, set_title
from stoker.supervisor import messages
from stoker.worker.main import MainLoop
from stoker.worker.state import resident
from stoker.worker.worker import LAST_WAIT, Worker

EXIT_START = 1
EXIT_BROKEN = 70

REPORT_EVERY = 0.25
ALIVE_EVERY = 2.0
MEASURED_EVERY = 2.0
SWITCH_INTERVAL = 0.0005
"""Seconds between two switches of threads: handlers that compute must not delay the lease keeper's thread."""

LAST_RESORT = 5.0
"""Seconds after which a process that should have exited is ended, whatever its threads do."""


class SupervisedWorker:
    """One worker with a connection to its supervisor."""

    def __init__(self, parent: Parent, worker: Worker) -> None:
        self._parent = parent
        self._worker = worker
        self._main_loop = MainLoop(worker, self._report)

    def run(self) -> int:
        """Work until asked to stop; returns the exit code."""
        self._parent.listen(self._received, self._orphaned)
        self._parent.outlive()
        self._main_loop.run()
        self._send_measures()
        ordered = self._worker.stop_ordered
        asked = self._main_loop.asked or self._worker.draining or ordered
        self._parent.send(messages.encode(messages.Finished(asked, self._counts(), ordered)))
        return 0 if asked else EXIT_BROKEN

    def _received(self, line: bytes) -> None:
        main_loop = self._main_loop
        calls = {
            messages.Drain: main_loop.drain,
            messages.Hurry: main_loop.hurry,
            messages.Quiet: main_loop.quiet,
            messages.Resume: main_loop.resume,
        }
        self._on_loop(calls[type(messages.read_order(line))])

    def _on_loop(self, call: Callable[[], None]) -> None:
        try:
            self._main_loop.loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed: on the way out already
            return

    def _orphaned(self) -> None:
        """Drain without a supervisor; end the process even if a handler blocks the loop."""
        self._on_loop(self._main_loop.drain)
        time.sleep(self._worker.settings.shutdown_grace / SECOND + 2 * LAST_WAIT)
        os._exit(EXIT_BROKEN)

    async def _report(self) -> None:
        """Report every change, and every two seconds: an idle worker must cost next to nothing."""
        worker = self._worker
        sent, sent_at, measured_at = None, 0.0, 0.0
        while True:
            quiet, abandoned = worker.is_quiet, worker.executors.threads.abandoned
            news = (worker.ready, quiet, worker.runs, worker.resting, abandoned, tuple(worker.counts.values()))
            now = time.monotonic()
            if news != sent or now - sent_at > ALIVE_EVERY:
                sent, sent_at = news, now
                stats = messages.Stats(
                    ready=worker.ready,
                    counts=self._counts(),
                    quiet=quiet,
                    running=worker.runs,
                    abandoned=abandoned,
                    slots=sum(lane.slots for lane in worker.lanes),
                    rss=resident(),
                    resting=worker.resting,
                )
                self._parent.send(messages.encode(stats))
            if now - measured_at > MEASURED_EVERY:
                measured_at = now
                self._send_measures()
            await asyncio.sleep(REPORT_EVERY)

    def _send_measures(self) -> None:
        if self._worker.recorder is not None:
            self._parent.send(messages.encode(messages.Measured(self._worker.measured())))

    def _counts(self) -> dict[str, int]:
        return {status.value: count for status, count in self._worker.counts.items() if count}


def main(prepare: Callable[[messages.Assignment], object] = lambda _: None) -> NoReturn:
    """Run the worker process."""
    parent = Parent(signal.SIGTERM)
    assignment = messages.read_order(parent.receive())
    assert isinstance(assignment, messages.Assignment)
    prepare(assignment)
    notices.leave_to_parent()
    sys.setswitchinterval(SWITCH_INTERVAL)
    _leave(_work(parent, assignment))


def _work(parent: Parent, assignment: messages.Assignment) -> int:
    try:
        app = load(assignment.app)
        queues = assignment.queues
        worker = Worker(app, queues, order=assignment.order, drain=assignment.drain, **assignment.settings)
        worker.supervised_by(
            assignment.supervisor, lambda identity: parent.send(messages.encode(messages.Identity(identity)))
        )
        if assignment.metrics:
            worker.measure()
        worker.check()
        served = ", ".join(worker.served)
        set_title(f"worker of {assignment.app}, queues {served}")
        return SupervisedWorker(parent, worker).run()
    except StokerError as error:
        parent.send(messages.encode(messages.StartFailed(text_of(error))))
        return EXIT_START
    except BaseException as error:  # noqa: BLE001 - the supervisor logs whatever an import or a lifespan raises
        parent.send(messages.encode(messages.StartFailed(describe_error(error))))
        return EXIT_START


def _leave(code: int) -> NoReturn:
    """Exit as usual, so that exit hooks run; abandoned threads delay that by a few seconds at most."""
    timer = threading.Timer(LAST_RESORT, os._exit, (code,))
    timer.daemon = True
    timer.start()
    sys.exit(code)


if __name__ == "__main__":
    main()

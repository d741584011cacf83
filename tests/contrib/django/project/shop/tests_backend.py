"""StokerBackend does what Django asks of a backend for its tasks."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

from django.core import checks
from django.db import transaction
from django.test import TestCase, TransactionTestCase, override_settings, tag
from django.utils import timezone
from django.utils.module_loading import import_string

from shop import later
from stoker.contrib.django import StokerBackend, jobs
from stoker.contrib.django.backend import DjangoTask
from stoker.contrib.django.task_api import (
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    TaskResultStatus,
    base,
    signals,
)
from stoker.contrib.django.testing import drain, kit
from stoker.testing.enqueued import find

Mismatch = import_string(f"{base.__package__}.exceptions.TaskResultMismatch")
backends = import_string(f"{base.__package__}.task_backends")
READY, FAILED, SUCCESSFUL = TaskResultStatus.READY, TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL


def stored(task: Any) -> Any:
    """The one job of a task."""
    [job] = find(jobs, jobs.tasks[task.module_path])
    return job


class Declaring(TestCase):
    def test_a_task_is_a_task_of_stoker_too(self) -> None:
        self.assertIsInstance(backends["default"], StokerBackend)
        self.assertIsInstance(later.bare, DjangoTask)
        self.assertEqual(jobs.tasks["shop.later.bare"].options.queue, "default")
        self.assertEqual(later.bare.call(4), 8)
        self.assertIs(import_string(later.bare.module_path), later.bare)

    def test_workers_serve_every_queue_of_the_backend(self) -> None:
        self.assertLessEqual({"default", "mail"}, jobs.served_queues())

    def test_functions_that_no_worker_can_import(self) -> None:
        def inner() -> None: ...

        for function, words in [
            (any, "module level"),
            (inner, "module level"),
            (lambda: None, "module level"),
            (later.Holder.method, "Holder.method is a method"),
        ]:
            with self.subTest(words), self.assertRaisesMessage(InvalidTask, words):
                base.task()(function)

    def test_a_task_under_another_name_is_found_by_check(self) -> None:
        self.assertEqual(backends["default"].check(), [])
        base.task()(later.plain)  # the module keeps the function under that name
        [found] = backends["default"].check()
        self.assertIsInstance(found, checks.Error)
        self.assertIn("shop.later.plain is not the name", found.msg)
        from stoker.contrib.django import backend

        del backend._tasks["shop.later.plain"]

    def test_wrong_options(self) -> None:
        with self.assertRaises(TypeError):
            base.task(atempts=3)(later.plain)
        with self.assertRaisesMessage(InvalidTask, "attempts"):
            later.bare.using(attempts=0)
        with self.assertRaisesMessage(TypeError, "did you mean attempts?"):
            later.bare.using(atempts=3)
        with self.assertRaisesMessage(InvalidTask, "give it to the decorator"):
            later.bare.using(retry_on=ValueError)
        with self.assertRaisesMessage(InvalidTask, "Queue 'other' is not valid"):
            later.bare.using(queue_name="other")
        with self.assertRaisesMessage(InvalidTask, "must be an aware datetime"):
            later.bare.using(run_after=datetime(2030, 1, 1))
        for priority in (-101, 101, 3.1):
            with self.assertRaisesMessage(InvalidTask, "between -100 and 100"):
                later.bare.using(priority=priority)
        with self.assertRaisesMessage(InvalidTask, "first argument of 'context'"):
            base.task(takes_context=True)(later.plain)

    def test_wrong_options_of_the_backend(self) -> None:
        for wrong, words in [
            ({"OPTIONS": {"atempts": 3}}, "TASKS['x'] OPTIONS"),
            ({"OPTIONS": {"attempts": 0}}, "attempts"),
            ({"QUEUES": ["no queue"]}, "TASKS['x'] QUEUES"),
        ]:
            with self.subTest(words), self.assertRaisesMessage(InvalidTaskBackend, words):
                StokerBackend("x", wrong)

    def test_using_makes_a_copy(self) -> None:
        copy = later.bare.using(attempts=7, priority=5)
        self.assertEqual((copy.attempts, copy.priority), (7, 5))
        self.assertEqual((later.bare.attempts, later.bare.priority), (None, 0))
        self.assertEqual(later.bare.using(), later.bare)


class Enqueueing(TestCase):
    def test_a_result_that_is_ready(self) -> None:
        result = later.echo.enqueue(1, two=3)
        self.assertEqual((result.status, result.args, result.kwargs), (READY, [1], {"two": 3}))
        self.assertEqual((result.task, result.backend, result.attempts), (later.echo, "default", 0))
        self.assertIsNotNone(result.enqueued_at)
        again = later.echo.get_result(result.id)
        self.assertEqual((again.args, again.kwargs, again.task), ([1], {"two": 3}, later.echo))

    def test_arguments_come_back_as_they_were_given(self) -> None:
        for args, kwargs in [((1,), {}), ((1, 5), {}), ((1,), {"factor": 5}), ((), {"number": 1, "factor": 5})]:
            result = later.bare.enqueue(*args, **kwargs)
            again = later.bare.get_result(result.id)
            self.assertEqual((again.args, again.kwargs), (list(args), kwargs))

    def test_what_json_cannot_carry_is_refused(self) -> None:
        with self.assertRaisesMessage(TypeError, "Unsupported type"):
            later.echo.enqueue(datetime.now())
        self.assertEqual(find(jobs, jobs.tasks["shop.later.echo"]), [])

    def test_options_of_the_job(self) -> None:
        later.bare.using(priority=7, queue_name="mail", attempts=9, metadata={"a": "b"}, label="no. {number}").enqueue(
            1
        )
        job = stored(later.bare)
        self.assertEqual((job.priority, job.queue, job.budget, job.keep.total_seconds()), (-7, "mail", 9, 3600))
        self.assertEqual((job.metadata["a"], job.label), ("b", "no. 1"))
        again = later.bare.get_result(job.id)
        self.assertEqual((again.task.priority, again.task.queue_name), (7, "mail"))

    def test_the_higher_priority_runs_first(self) -> None:
        low, high = later.bare.using(priority=-5).enqueue(1), later.bare.using(priority=5).enqueue(2)
        drain()
        low.refresh()
        high.refresh()
        self.assertLess(high.started_at, low.started_at + timedelta(microseconds=1))

    def test_run_after(self) -> None:
        result = later.bare.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(2)
        self.assertEqual(drain(), {})
        kit().advance_sync(3601)
        result.refresh()
        self.assertEqual(result.return_value, 4)

    @override_settings(USE_TZ=False)
    def test_without_time_zones(self) -> None:
        result = later.bare.using(run_after=datetime.now() + timedelta(hours=1)).enqueue(2)
        self.assertEqual(drain(), {})
        kit().advance_sync(3601)
        result.refresh()
        self.assertIsNone(result.finished_at.tzinfo)

    def test_a_unique_key(self) -> None:
        first, second = later.once.enqueue(7), later.once.enqueue(7)
        self.assertEqual(first.id, second.id)
        self.assertNotEqual(later.once.enqueue(8).id, first.id)

    async def test_in_a_loop(self) -> None:
        result = await later.in_a_loop.aenqueue("ada")
        self.assertEqual(await kit().drain(), {"done": 1})
        await result.arefresh()
        self.assertEqual(result.return_value, "ADA")
        self.assertEqual((await later.in_a_loop.aget_result(result.id)).status, SUCCESSFUL)

    def test_it_joins_transactions_and_waits_for_the_commit(self) -> None:
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            result = later.bare.enqueue(1)
            with self.assertRaises(TaskResultDoesNotExist):
                later.bare.get_result(result.id)
        later.bare.get_result(result.id)


class Results(TestCase):
    def test_success(self) -> None:
        result = later.bare.enqueue(21)
        with self.assertRaisesMessage(ValueError, "not finished"):
            _ = result.return_value
        self.assertEqual(drain(), {"done": 1})
        result.refresh()
        self.assertEqual((result.status, result.return_value, result.attempts), (SUCCESSFUL, 42, 1))
        self.assertTrue(result.is_finished)
        self.assertLessEqual(result.enqueued_at, result.started_at)
        self.assertLessEqual(result.started_at, result.finished_at)
        self.assertEqual(dataclasses.replace(result, errors=[]).errors, [])

    def test_failure_with_every_error(self) -> None:
        result = later.fail.enqueue()
        drain()
        result.refresh()
        self.assertEqual((result.status, len(result.errors), result.attempts), (READY, 1, 1))
        kit().advance_sync(3600)
        result.refresh()
        self.assertEqual((result.status, len(result.errors), result.attempts), (FAILED, 2, 2))
        with self.assertRaisesMessage(ValueError, "Task failed"):
            _ = result.return_value
        self.assertIs(result.errors[0].exception_class, ValueError)
        self.assertTrue(result.errors[0].traceback.endswith("ValueError: this task fails\n"))
        self.assertTrue(result.errors[0].traceback.startswith("Traceback (most recent call last):\n"))

    def test_a_task_that_leaves(self) -> None:
        result = later.leave.enqueue()
        drain()
        result.refresh()
        self.assertEqual(result.status, FAILED)
        self.assertIs(result.errors[0].exception_class, SystemExit)

    def test_what_json_cannot_carry_fails_at_once(self) -> None:
        result = later.odd.enqueue()
        drain()
        result.refresh()
        self.assertEqual((result.status, result.attempts), (FAILED, 1))
        self.assertTrue(issubclass(result.errors[0].exception_class, TypeError))
        self.assertIn("Unsupported type", result.errors[0].traceback)

    def test_results_that_are_not_there(self) -> None:
        native = jobs.tasks["confirm"].enqueue_sync(1)
        for unknown in ("123", "01a1ee2b-5b72-7416-87ea-00243484ae44", native.id):
            with self.assertRaises(TaskResultDoesNotExist):
                later.bare.get_result(unknown)
        with self.assertRaises(Mismatch):
            later.bare.get_result(later.echo.enqueue().id)

    def test_the_context(self) -> None:
        result = later.about.enqueue("word")
        kit().advance_sync(3600)
        result.refresh()
        *told, workers = result.return_value
        self.assertEqual(told, ["word", 2, result.id, [True, True, 1], ["word"], "RUNNING"])
        self.assertEqual(workers, result.worker_ids, "of both attempts")
        self.assertNotIn("unknown", workers)

    def test_the_context_in_a_coroutine(self) -> None:
        result = later.about_async.enqueue()
        kit().advance_sync(3600)
        result.refresh()
        self.assertEqual(result.return_value, result.worker_ids)
        self.assertNotIn("unknown", result.worker_ids)

    def test_signals(self) -> None:
        from stoker.contrib.django.backend import _receivers

        _receivers.submit(lambda: None).result(60)  # what jobs of other tests still signal
        said: list[tuple[str, str]] = []
        for signal, word in (
            (signals.task_enqueued, "enqueued"),
            (signals.task_started, "started"),
            (signals.task_finished, "finished"),
        ):

            def note(task_result: Any, word: str = word, **_: Any) -> None:
                said.append((word, task_result.status))

            signal.connect(note, weak=False)
            self.addCleanup(signal.disconnect, note)
        later.bare.enqueue(1)
        drain()
        self.assertEqual(said, [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")])
        said.clear()
        later.leave.enqueue()
        drain()
        _receivers.submit(lambda: None).result(60)
        self.assertEqual(said, [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "FAILED")])


class OnTheRealStore(TransactionTestCase):
    @tag("core")
    def test_a_worker_imports_what_it_does_not_know(self) -> None:
        with transaction.atomic():
            result = later.bare.enqueue(3)
        self.assertEqual(drain(), {"done": 1})
        result.refresh()
        self.assertEqual(result.return_value, 6)
        self.assertEqual(len(result.worker_ids), 1)

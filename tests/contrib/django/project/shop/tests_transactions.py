"""On the real store: what is enqueued inside of atomic() shares its fate."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

from asgiref.sync import async_to_sync
from django.core import mail
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.test import TransactionTestCase, tag

from shop import tasks
from shop.models import Order
from shop.tasks import confirm, count, orders, pay, pay_at_once, refuse, seen
from stoker import EngineError
from stoker.contrib.django import jobs
from stoker.contrib.django.settings import is_in_memory
from stoker.contrib.django.testing import drain, kit
from stoker.contrib.django.transactions import Ambient
from stoker.testing import assert_enqueued
from stoker.worker import Worker


def stored(*tasks_: Any) -> list[str]:
    """The kinds of the jobs of these tasks that the store has."""
    from stoker.testing.enqueued import find

    return [job.kind for task in tasks_ or (confirm, pay) for job in find(jobs, task)]


class Base(TransactionTestCase):
    databases = {"default", "other"}

    def setUp(self) -> None:
        self.assertEqual(stored(), [], "the store is emptied with the test database")
        mail.outbox.clear()
        seen.clear()
        self.order = Order.objects.create(email="ada@example.com")


class Joins(Base):
    @tag("core")
    def test_a_commit_stores_the_job(self) -> None:
        with transaction.atomic():
            confirm.enqueue_sync(self.order.pk)
            assert_enqueued(confirm, tx=connection)  # in the transaction already, not after it
        self.assertEqual(stored(), ["confirm"])
        self.assertEqual(drain(), {"done": 1})
        self.assertEqual(mail.outbox[0].to, ["ada@example.com"])

    def test_a_rollback_takes_it_along(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            confirm.enqueue_sync(self.order.pk)
            raise ZeroDivisionError
        self.assertEqual(stored(), [])

    @tag("core")
    def test_so_does_a_savepoint(self) -> None:
        with transaction.atomic():
            pay.enqueue_sync(self.order.pk)
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                confirm.enqueue_sync(self.order.pk)
                raise ZeroDivisionError
        self.assertEqual(stored(), ["pay"])

    def test_many_and_groups_join(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            jobs.enqueue_many_sync([confirm.draft(1), confirm.draft(2)])
            jobs.run(jobs.group([pay.draft(1)]))
            raise ZeroDivisionError
        self.assertEqual(stored(), [])
        with transaction.atomic():
            jobs.enqueue_many_sync([confirm.draft(1), confirm.draft(2)])
            jobs.run(jobs.group([pay.draft(1)]))
        self.assertEqual(stored(), ["confirm", "confirm", "pay"])

    def test_outside_it_is_stored_at_once(self) -> None:
        confirm.enqueue_sync(self.order.pk)
        self.assertEqual(stored(), ["confirm"])

    def test_tx_false_means_now(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            confirm.using(tx=False).enqueue_sync(self.order.pk)
            raise ZeroDivisionError
        self.assertEqual(stored(), ["confirm"])

    @tag("core")
    def test_messages_join(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            orders.append_sync("ada", {"order": 1})
            raise ZeroDivisionError
        with transaction.atomic():
            orders.append_sync("ada", {"order": 2})
        drain()
        self.assertEqual(seen, [{"order": 2}])

    @tag("core")
    def test_every_thread_has_its_own(self) -> None:
        def buy(number: int) -> None:
            try:
                with transaction.atomic():
                    confirm.enqueue_sync(number)
                    if number % 2:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            finally:
                connection.close()

        threads = [threading.Thread(target=buy, args=(number,)) for number in range(4)]
        with transaction.atomic() if connection.vendor != "sqlite" else transaction.atomic(using="other"):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(stored(), ["confirm", "confirm"])


class Coroutines(Base):
    def test_a_coroutine_never_joins_and_says_so_once(self) -> None:
        async def enqueue() -> None:
            await confirm.enqueue(self.order.pk)

        for run in (lambda: asyncio.run(enqueue()), async_to_sync(enqueue)):
            jobs.ambient = Ambient(jobs, jobs.given)  # one that has said nothing yet
            with self.assertLogs("stoker.django", "WARNING") as said:
                for _ in range(2):
                    with self.assertRaises(ZeroDivisionError), transaction.atomic():
                        run()
                        raise ZeroDivisionError
            self.assertEqual(len(said.output), 1)
            self.assertIn("Django has no async transactions", said.output[0])
        self.assertEqual(stored(), ["confirm"] * 4)

    def test_outside_of_atomic_nothing_is_said(self) -> None:
        jobs.ambient = Ambient(jobs, jobs.given)

        async def enqueue() -> None:
            await confirm.enqueue(self.order.pk)

        with self.assertNoLogs("stoker.django", "WARNING"):
            async_to_sync(enqueue)()


class OtherDatabase(Base):
    """Inside of atomic() of a database that does not hold the jobs."""

    def setUp(self) -> None:
        super().setUp()
        before = jobs.ambient
        self.addCleanup(lambda: setattr(jobs, "ambient", before))

    def outside(self, word: Any) -> None:
        jobs.ambient = Ambient(jobs, replace(jobs.given, outside=word))

    @tag("core")
    def test_on_commit(self) -> None:
        self.outside("on_commit")
        with transaction.atomic(using="other"):
            job = confirm.enqueue_sync(self.order.pk)
            jobs.enqueue_many_sync([pay.draft(self.order.pk)])
            orders.append_sync("ada", {"order": 3})
            self.assertEqual(stored(), [])
        self.assertEqual(stored(), ["confirm", "pay"])
        self.assertEqual(job.refresh_sync().kind, "confirm")
        drain()
        self.assertEqual(seen, [{"order": 3}])

    def test_on_commit_forgets_what_is_rolled_back(self) -> None:
        self.outside("on_commit")
        with self.assertRaises(ZeroDivisionError), transaction.atomic(using="other"):
            confirm.enqueue_sync(self.order.pk)
            raise ZeroDivisionError
        self.assertEqual(stored(), [])

    def test_now(self) -> None:
        self.outside("now")
        with self.assertRaises(ZeroDivisionError), transaction.atomic(using="other"):
            confirm.enqueue_sync(self.order.pk)
            raise ZeroDivisionError
        self.assertEqual(stored(), ["confirm"])

    def test_refuse(self) -> None:
        self.outside("refuse")
        with transaction.atomic(using="other"):
            with self.assertRaisesMessage(EngineError, "atomic() of the database 'other'"):
                confirm.enqueue_sync(self.order.pk)
            confirm.using(tx=False).enqueue_sync(self.order.pk)
        self.assertEqual(stored(), ["confirm"])

    def test_inside_of_both_the_own_one_is_joined(self) -> None:
        self.outside("refuse")
        with transaction.atomic(using="other"), transaction.atomic():
            confirm.enqueue_sync(self.order.pk)
        self.assertEqual(stored(), ["confirm"])


class Handlers(Base):
    @tag("core")
    def test_handlers_use_the_orm_and_join_their_own_blocks(self) -> None:
        pay.enqueue_sync(self.order.pk)
        self.assertEqual(drain(), {"done": 2})
        self.order.refresh_from_db()
        self.assertTrue(self.order.paid)
        self.assertEqual(len(mail.outbox), 1)

    def test_a_handler_that_fails_enqueues_nothing(self) -> None:
        refuse.using(attempts=1).enqueue_sync(self.order.pk)
        self.assertEqual(drain(), {"dead": 1})
        self.assertEqual(stored(), [])

    @tag("core")
    def test_the_end_of_a_job_and_its_writes_in_one_commit(self) -> None:
        pay_at_once.enqueue_sync(self.order.pk)
        self.assertEqual(drain(), {"done": 2})
        self.order.refresh_from_db()
        self.assertTrue(self.order.paid)

    def test_an_async_handler_uses_the_orm(self) -> None:
        job = count.enqueue_sync()
        drain()
        self.assertEqual(job.result_sync(timeout=10), 1)

    @tag("core")
    def test_connections_are_closed_around_every_job(self) -> None:
        found = [tasks.connections_of_this_thread.enqueue_sync() for _ in range(3)]

        async def one_after_the_other() -> None:
            async with Worker(jobs, {"default": 1}, drain=True) as worker:
                await worker.join()

        jobs.run(one_after_the_other())
        results = [job.result_sync(timeout=10) for job in found]
        self.assertEqual(len({thread for thread, _ in results}), 1)
        kept = is_in_memory("default")  # Django does not close these
        self.assertEqual([before for _, before in results][1:], [kept, kept])


class Store(Base):
    @tag("core")
    def test_it_is_the_test_database(self) -> None:
        name = str(connection.settings_dict["NAME"])
        if is_in_memory("default"):
            self.assertEqual(jobs.root().name, "memory")
            self.assertIs(kit().app, jobs)
        else:
            self.assertIn(name, jobs.root().where)
            with self.assertRaisesMessage(Exception, "a TransactionTestCase works on the test database"):
                kit()

    def test_the_schema_is_there_and_migrate_may_be_repeated(self) -> None:
        call_command("migrate", verbosity=0)
        call_command("migrate", plan=True, verbosity=0)
        call_command("migrate", database="other", verbosity=0)
        self.assertEqual([name for name in connections["other"].introspection.table_names() if "stoker" in name], [])
        confirm.enqueue_sync(self.order.pk)
        call_command("migrate", verbosity=0)
        self.assertEqual(stored(), ["confirm"])

    @tag("core")
    def test_flush_empties_it(self) -> None:
        confirm.enqueue_sync(self.order.pk)
        call_command("flush", interactive=False, verbosity=0)
        self.assertEqual(stored(), [])

    def test_a_worker_process_is_refused(self) -> None:
        with self.assertRaisesMessage(CommandError, "does not know the test database"):
            call_command("stoker", "work", "--drain")

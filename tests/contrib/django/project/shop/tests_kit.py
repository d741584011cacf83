"""In a TestCase the store is a test kit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.core import mail
from django.db import connection, transaction
from django.test import TestCase

from shop.models import Order
from shop.tasks import confirm, count, orders, pay, refuse, seen
from stoker.contrib.django import jobs
from stoker.contrib.django.testing import drain, kit
from stoker.testing import TestKit, assert_enqueued, refute_enqueued


class Kit(TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        cls.order = Order.objects.create(email="ada@example.com")

    def test_every_test_begins_with_an_empty_one(self) -> None:
        refute_enqueued(confirm)
        confirm.enqueue_sync(self.order.pk)
        assert_enqueued(confirm, order=self.order.pk)
        self.assertEqual(jobs.root().name, "memory")

    test_and_once_more = test_every_test_begins_with_an_empty_one

    def test_a_commit_is_captured(self) -> None:
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            confirm.enqueue_sync(self.order.pk)
            refute_enqueued(confirm)
            assert_enqueued(confirm, tx=connection)
        assert_enqueued(confirm)
        self.assertEqual(kit().drain_sync(), {"done": 1})
        self.assertEqual(len(mail.outbox), 1)

    def test_without_it_nothing_goes(self) -> None:
        with transaction.atomic():
            confirm.enqueue_sync(self.order.pk)
        self.assertEqual(drain(), {})

    def test_a_rollback_takes_it_along(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            try:
                with transaction.atomic():
                    confirm.enqueue_sync(self.order.pk)
                    raise ZeroDivisionError
            except ZeroDivisionError:
                pass
        refute_enqueued(confirm)

    def test_handlers_see_the_data_of_the_test_and_commit(self) -> None:
        pay.enqueue_sync(self.order.pk)
        self.assertEqual(drain(), {"done": 2})
        self.order.refresh_from_db()
        self.assertTrue(self.order.paid)

    def test_a_handler_that_fails_leaves_nothing(self) -> None:
        refuse.using(attempts=1).enqueue_sync(self.order.pk)
        self.assertEqual(drain(), {"dead": 1})
        refute_enqueued(confirm)
        self.order.refresh_from_db()
        self.assertFalse(self.order.paid)

    def test_inline(self) -> None:
        with kit().inline():
            pay.enqueue_sync(self.order.pk)
        self.order.refresh_from_db()
        self.assertTrue(self.order.paid)

    def test_one_handler(self) -> None:
        self.assertEqual(kit().run_sync(confirm, self.order.pk), "ada@example.com")

    def test_the_clock_starts_now(self) -> None:
        soon = datetime.now(UTC) + timedelta(hours=1)
        confirm.using(at=soon).enqueue_sync(self.order.pk)
        self.assertEqual(kit().advance_sync(3500), {})
        self.assertEqual(kit().advance_sync(200), {"done": 1})

    def test_messages(self) -> None:
        seen.clear()
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            orders.append_sync("ada", {"order": 1})
        drain()
        self.assertEqual(seen, [{"order": 1}])

    async def test_in_a_loop(self) -> None:
        job = await confirm.enqueue(self.order.pk)
        other = await count.enqueue()
        self.assertEqual(await kit().drain(), {"done": 2})
        self.assertEqual(await job.result(), "ada@example.com")
        self.assertEqual(await other.result(), 1)

    def test_a_kit_of_ones_own_goes_before(self) -> None:
        confirm.enqueue_sync(self.order.pk)
        with TestKit(jobs) as mine:
            refute_enqueued(confirm)
            self.assertEqual(mine.drain_sync(), {})
        refute_enqueued(confirm)
        with jobs.kit_class(jobs) as mine:  # as the fixture of pytest makes it
            self.assertIs(kit(), mine)
            pay.enqueue_sync(self.order.pk)
            self.assertEqual(mine.drain_sync(), {"done": 2})
        refute_enqueued(confirm)

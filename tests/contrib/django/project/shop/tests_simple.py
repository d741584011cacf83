"""Run alone, these make no test database."""

from __future__ import annotations

from django.test import SimpleTestCase

from shop.tasks import pay
from stoker.contrib.django import jobs
from stoker.testing import assert_enqueued


class WithoutDatabase(SimpleTestCase):
    def test_it_is_never_the_real_store(self) -> None:
        pay.enqueue_sync(7)
        assert_enqueued(pay, order=7)
        self.assertEqual(jobs.root().name, "memory")

from django.core import mail
from django.test import TestCase

from shop.models import Order
from shop.tasks import confirm, nightly_report
from stoker.contrib.django.testing import kit
from stoker.testing import assert_enqueued, refute_enqueued


class OrderTests(TestCase):
    def order(self, cents: int) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            self.client.post("/order", {"email": "ada@example.com", "cents": cents})

    def test_an_order_is_confirmed(self) -> None:
        self.order(1999)
        assert_enqueued(confirm, order_id=Order.objects.get().pk, queue="mail")
        self.assertEqual(kit().drain_sync(), {"done": 1})
        self.assertEqual(mail.outbox[0].to, ["ada@example.com"])

    def test_an_order_that_is_rolled_back_is_not(self) -> None:
        with self.assertRaises(ValueError):
            self.order(0)
        refute_enqueued(confirm)
        self.assertFalse(Order.objects.exists())

    def test_the_mail_server_is_away(self) -> None:
        kit().fail_next(confirm, ConnectionError("the mail server is away"))
        self.order(500)
        self.assertEqual(kit().advance_sync(60), {"retrying": 1, "done": 1})
        self.assertEqual(len(mail.outbox), 1)

    def test_the_report_comes_every_night(self) -> None:
        kit().advance_sync(2 * 24 * 3600)
        self.assertEqual(len(kit().enqueued(nightly_report, status="done")), 2)

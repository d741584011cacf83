from datetime import timedelta

from django.core.mail import mail_admins, send_mail
from django.db.models import Sum
from django.utils import timezone

from shop.models import Order
from stoker.contrib.django import jobs


@jobs.task(queue="mail", attempts=8)
def confirm(order_id: int) -> None:
    order = Order.objects.get(pk=order_id)
    send_mail(f"Order {order.pk}", f"Thank you! {order.cents / 100:.2f} €", None, [order.email])


@jobs.cron("0 3 * * *", tz="Europe/Berlin")
def nightly_report() -> int:
    since = timezone.now() - timedelta(days=1)
    total = Order.objects.filter(placed_at__gte=since).aggregate(total=Sum("cents"))["total"] or 0
    mail_admins("Orders of the last day", f"{total / 100:.2f} €")
    return total

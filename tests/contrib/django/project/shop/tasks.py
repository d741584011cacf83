from __future__ import annotations

import threading
from typing import Any

from django.core.mail import send_mail
from django.db import connection, transaction

from shop.models import Order
from stoker import Outbox, current
from stoker.contrib.django import jobs
from stoker.outbox import Message

orders: Outbox[dict[str, int]] = Outbox(jobs, stream="orders")
seen: list[Any] = []


@jobs.task(queue="mail")
def confirm(order: int) -> str:
    email = Order.objects.get(pk=order).email
    send_mail("Thank you", "…", None, [email])
    return email


@jobs.task
def pay(order: int) -> None:
    with transaction.atomic():
        Order.objects.filter(pk=order).update(paid=True)
        confirm.enqueue_sync(order)


@jobs.task
def refuse(order: int) -> None:
    with transaction.atomic():
        Order.objects.filter(pk=order).update(paid=True)
        confirm.enqueue_sync(order)
        raise ValueError("refused")


@jobs.task
async def count() -> int:
    return await Order.objects.acount()


@jobs.task
def connections_of_this_thread() -> tuple[int, bool]:
    """Use the database; returns the thread, and whether the connection was there before."""
    before = connection.connection is not None
    Order.objects.count()
    return threading.get_ident(), before


@jobs.task(attempts=1)
def pay_at_once(order: int) -> None:
    with current().transaction():
        Order.objects.filter(pk=order).update(paid=True)
        confirm.enqueue_sync(order)


@orders.deliver
async def note(message: Message[dict[str, int]]) -> None:
    seen.append(message.body)

"""Relays: consumers that publish messages to another system. Their libraries are imported when they are opened."""

from __future__ import annotations

from stoker.outbox.relays.base import JoiningRelay, Partial, Relay
from stoker.outbox.relays.function import To
from stoker.outbox.relays.nats import ToNats
from stoker.outbox.relays.rabbit import ToRabbit
from stoker.outbox.relays.redis_stream import ToRedisStream
from stoker.outbox.relays.task import ToTask
from stoker.outbox.relays.verify import verify_webhook
from stoker.outbox.relays.webhook import ToWebhook

__all__ = [
    "JoiningRelay",
    "Partial",
    "Relay",
    "To",
    "ToNats",
    "ToRabbit",
    "ToRedisStream",
    "ToTask",
    "ToWebhook",
    "verify_webhook",
]

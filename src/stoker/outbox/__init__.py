"""The transactional outbox: messages that exist if and only if your transaction commits, delivered in order."""

from __future__ import annotations

from stoker.model.outbox.letters import LetterStatus
from stoker.model.outbox.stream import Entry
from stoker.outbox.batch import Batch
from stoker.outbox.consumers import ConsumerState, PartitionState, StreamHandle, StreamState
from stoker.outbox.handlers import DeliverOptions, Pace
from stoker.outbox.inbox import Inbox
from stoker.outbox.letters import Letter, LetterPage
from stoker.outbox.message import Message
from stoker.outbox.outbox import Outbox
from stoker.outbox.relays import (
    JoiningRelay,
    Partial,
    Relay,
    To,
    ToNats,
    ToRabbit,
    ToRedisStream,
    ToTask,
    ToWebhook,
    verify_webhook,
)

__all__ = [
    "Batch",
    "ConsumerState",
    "DeliverOptions",
    "Entry",
    "Inbox",
    "JoiningRelay",
    "Letter",
    "LetterPage",
    "LetterStatus",
    "Message",
    "Outbox",
    "Pace",
    "Partial",
    "PartitionState",
    "Relay",
    "StreamHandle",
    "StreamState",
    "To",
    "ToNats",
    "ToRabbit",
    "ToRedisStream",
    "ToTask",
    "ToWebhook",
    "verify_webhook",
]

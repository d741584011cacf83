"""The transactional outbox: messages that exist if and only if your transaction commits, delivered in order."""

from __future__ import annotations

from stoker.model.outbox.stream import Entry
from stoker.outbox.inbox import Inbox
from stoker.outbox.message import Message
from stoker.outbox.outbox import Outbox
from stoker.outbox.relays.base import JoiningRelay, Partial, Relay

__all__ = ["Entry", "Inbox", "JoiningRelay", "Message", "Outbox", "Partial", "Relay"]

"""Relays: consumers that publish messages to another system."""

from __future__ import annotations

from stoker.outbox.relays.base import JoiningRelay, Partial, Relay

__all__ = ["JoiningRelay", "Partial", "Relay"]

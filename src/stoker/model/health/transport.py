"""What the way to a store's server means: who could read or change what is sent."""

from __future__ import annotations

from stoker.model.access import is_loopback
from stoker.model.health.check import Check, ok, warning
from stoker.model.health.facts import Transport

READABLE = "Anyone on the network between can read passwords and payloads, and change them."
UNVERIFIED = "Anyone on the network between can pretend to be the server: its certificate is not checked."


def judge(way: Transport) -> Check:
    """Is the way to the server on this machine, or encrypted to a server that proved who it is?"""
    if not way.host or way.host.startswith("/") or is_loopback(way.host):
        return ok("transport", "the server is on this machine")
    if not way.encrypted:
        return warning("transport", f"the connection to {way.host} is not encrypted", READABLE, way.remedy)
    if not way.verified:
        return warning("transport", f"the connection to {way.host} is encrypted, unchecked", UNVERIFIED, way.remedy)
    return ok("transport", f"the connection to {way.host} is encrypted, and its certificate is checked")

"""Who a job is for: the principal that its payload names, the correlation id of its metadata, else its payload, and
the trace of its caller.

Only top-level keys of an object payload count. The first usable value of a list of keys is taken: a text that is not
empty, a number or a boolean; null, empty text, lists and objects are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

PRINCIPAL = ("principal_id", "principal", "user_id")
CORRELATION = ("correlation_id", "request_id")

TRACE: Final = "traceparent"
"""The metadata key under which a job carries the span that stored it, as W3C writes it."""

_TRACE: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Origin(NamedTuple):
    """Who a job is for, and which request it belongs to; None where the job does not say."""

    principal: str | None = None
    correlation: str | None = None


def origin(payload: bytes, metadata: Mapping[str, str] | None = None) -> Origin:
    """Read both of a job: `metadata`, which it was enqueued with, go before the payload for the correlation."""
    noted = next((metadata[key] for key in CORRELATION if metadata.get(key)), None) if metadata else None
    try:
        parts = _decode(payload)
        return Origin(_first(parts, PRINCIPAL), noted or _first(parts, CORRELATION))
    except (msgspec.MsgspecError, ValueError):
        return Origin(None, noted)


def trace_id(metadata: Mapping[str, str] | None, key: str = TRACE) -> str | None:
    """The id of the trace that metadata carry under a key; None where there is none."""
    found = _TRACE.match((metadata or {}).get(key, ""))
    return None if found is None else found[1]


def _first(parts: dict[str, msgspec.Raw], keys: tuple[str, ...]) -> str | None:
    return next((text for key in keys if key in parts and (text := _usable(bytes(parts[key])))), None)


def _usable(raw: bytes) -> str | None:
    if raw[:1] == b'"':
        return msgspec.json.decode(raw, type=str) or None
    return None if raw[:1] in (b"n", b"[", b"{") else raw.decode()  # numbers and booleans, as they are written

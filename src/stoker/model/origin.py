"""Who a job is for: the principal that its payload names, and the correlation id of its metadata, else its payload.

Only top-level keys of an object payload count. The first usable value of a list of keys is taken: a text that is not
empty, a number or a boolean; null, empty text, lists and objects are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

PRINCIPAL = ("principal_id", "principal", "user_id")
CORRELATION = ("correlation_id", "request_id")

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


def _first(parts: dict[str, msgspec.Raw], keys: tuple[str, ...]) -> str | None:
    return next((text for key in keys if key in parts and (text := _usable(bytes(parts[key])))), None)


def _usable(raw: bytes) -> str | None:
    if raw[:1] == b'"':
        return msgspec.json.decode(raw, type=str) or None
    return None if raw[:1] in (b"n", b"[", b"{") else raw.decode()  # numbers and booleans, as they are written

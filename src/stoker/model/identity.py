"""Who and what a job is about, by the names that apps usually give it: its principal and its correlation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

PRINCIPAL = ("principal_id", "principal", "user_id")
CORRELATION = ("correlation_id", "request_id")


def principal(values: Mapping[str, object]) -> str | None:
    """For whom a job runs: the first usable of these keys of its arguments; None without one."""
    return _first(values, PRINCIPAL)


def correlation(values: Mapping[str, object]) -> str | None:
    """What a job belongs to: the first usable of these keys of its arguments; None without one."""
    return _first(values, CORRELATION)


class _Correlated(msgspec.Struct):
    """The keys that are looked for; a decoder skips all others."""

    correlation_id: Any = None
    request_id: Any = None


_decode = msgspec.json.Decoder(_Correlated).decode


def correlation_in(payload: bytes) -> str | None:
    """The correlation of a payload; None where it is no object, or cannot be read."""
    try:
        return correlation(msgspec.structs.asdict(_decode(payload)))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _first(values: Mapping[str, object], keys: Sequence[str]) -> str | None:
    return next((text for key in keys if (text := _text(values.get(key))) is not None), None)


def _text(value: object) -> str | None:
    """A text that says something, or a number or boolean as text; None for everything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return value if isinstance(value, str) and value else None

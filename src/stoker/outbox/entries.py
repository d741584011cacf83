"""Bodies to payloads and back.

Bytes are stored as they are; anything else is JSON, under the same checks as the arguments of a job. A body comes back
by the type hint of the handler, which is read when the handler is declared.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from stoker.codec.to_json import PLAIN, encode_value, reason, revive
from stoker.model.errors import InvalidInput, PayloadMismatch, shown
from stoker.model.outbox.stream import LARGEST_MESSAGE
from stoker.outbox.message import Reader

BYTES: Final = "application/octet-stream"
JSON: Final = "json"

_UNNAMED: Final = frozenset({dict, list, tuple, set, frozenset, str, int, float, bool, type(None)})
_TEXT: Final = frozenset({str})


def encode(body: Any, kind: str | None = None) -> tuple[bytes, str, bool]:
    """The payload of a body, its type, and whether it is raw bytes."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), BYTES if kind is None else kind, True
    payload = encode_value(body, _parts(body), "body", LARGEST_MESSAGE)
    if kind is None:
        kind = JSON if type(body) in _UNNAMED else type(body).__name__
    return payload, kind, False


def _parts(body: Any) -> Collection[Any]:
    """What the encoder has to look at: the fields where all of them are plain, which is cheap, else the body."""
    values: tuple[Any, ...]
    if type(body) is dict and _TEXT.issuperset(map(type, body)):
        values = tuple(body.values())
    elif isinstance(body, msgspec.Struct):
        values = astuple(body)
    else:
        return (body,)
    return values if PLAIN.issuperset(map(type, values)) else (body,)


def reader(hint: Any, owner: str) -> Reader:
    """Make what decodes bodies by `hint`; raises `InvalidInput` naming `owner` if msgspec knows no way."""
    members = {_name(one): one for one in _members(hint)}
    by_type = {name: _decoder(one, owner) for name, one in members.items() if _is_class(one)}
    try:
        whole: Callable[[bytes], Any] | None = msgspec.json.Decoder(hint, dec_hook=revive).decode
    except Exception as error:
        if len(by_type) < 2 or len(by_type) < len(members):
            raise _refusal(hint, owner, error) from error
        whole = None  # several classes, which only the type of a message tells apart
    takes_bytes = any(one in (bytes, Any, object) for one in members.values())

    def read(payload: bytes, kind: str, raw: bool) -> Any:
        if raw:
            if takes_bytes:
                return payload
            raise PayloadMismatch(owner, payload, f"the message is raw bytes of type {kind!r}, not JSON")
        decode = by_type.get(kind, whole)
        if decode is None:
            raise PayloadMismatch(
                owner, kind, f"the type of the message is {shown(kind)} and must be one of {', '.join(sorted(members))}"
            )
        try:
            return decode(payload)
        except Exception as error:
            raise PayloadMismatch(owner, payload, reason(error)) from error

    return read


def _decoder(hint: Any, owner: str) -> Callable[[bytes], Any]:
    try:
        return msgspec.json.Decoder(hint, dec_hook=revive).decode
    except Exception as error:
        raise _refusal(hint, owner, error) from error


def _refusal(hint: Any, owner: str, error: Exception) -> InvalidInput:
    why = f"this type hint cannot be decoded from JSON ({error}); use Message[Any] to take bodies as they come"
    return InvalidInput(owner, hint, why)


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))


def _is_class(hint: Any) -> bool:
    """A class of the user's, whose name may be the type of a message; plain types are told apart by their JSON."""
    return isinstance(hint, type) and hint not in PLAIN and hint not in _UNNAMED and hint is not object

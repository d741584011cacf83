"""What every target gets beside the payload: the stable id and where the message comes from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from stoker.outbox.message import Message

JSON = "application/json"
BYTES = "application/octet-stream"

_NAME = "!#$&'*+.^_`|~"
_VALUE = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}"


def headers_of(message: Message[Any]) -> dict[str, str]:
    """The user's headers, and those that begin with `stoker-`, which only Stoker sets."""
    given = {name: value for name, value in message.headers.items() if not name.lower().startswith("stoker-")}
    return {
        **given,
        "stoker-id": message.id,
        "stoker-stream": message.stream,
        "stoker-partition": str(message.partition),
        "stoker-number": str(message.number),
        "stoker-key": message.key,
        "stoker-type": message.type,
        "stoker-created": message.created.isoformat(),
    }


def ascii_headers(message: Message[Any], without: Iterable[str]) -> dict[str, str]:
    """The same for protocols whose headers are lines of ASCII: whatever else is in them becomes `%` and hex digits.

    `without`: names that belong to the protocol, in lower case; one that ends with `-` stands for all that begin so.
    The user's headers do not set them.
    """
    names = frozenset(without)
    beginnings = tuple(one for one in names if one.endswith("-"))
    return {
        quote(name, safe=_NAME): quote(value, safe=_VALUE)
        for name, value in headers_of(message).items()
        if name.lower() not in names and not name.lower().startswith(beginnings)
    }


def content_type(message: Message[Any]) -> str:
    """The media type of the payload: bytes may name theirs as the message's type."""
    if not message.raw:
        return JSON
    return message.type if "/" in message.type else BYTES

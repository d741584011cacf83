"""Values that a store keeps beside its jobs, row by row, so that they can be stored in another form."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Part(enum.StrEnum):
    """Where such values are. An engine without streams has nothing in the last five."""

    GROUPS = "groups"
    KINDS = "kinds"
    INCOMING = "incoming"
    MESSAGES = "messages"
    LETTERS = "letters"
    CURSORS = "cursors"
    PARKED = "parked"


class Kept(NamedTuple):
    """The values of one row as they are stored, None for those that it has not.

    `at` is its place, which an engine writes and reads. `body` are the callbacks of a group (`groups.pack_callbacks`)
    or the payload of a message, `headers` the JSON of its headers, `error` a last error or a reason. `of` is the kind
    or stream, `id` that of the message.
    """

    at: str
    of: str = ""
    consumer: str = ""
    id: bytes = b""
    body: bytes | None = None
    headers: str | None = None
    error: str | None = None

    @property
    def values(self) -> tuple[bytes | None, str | None, str | None]:
        """What is compared and rewritten."""
        return self.body, self.headers, self.error

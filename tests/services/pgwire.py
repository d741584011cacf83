"""As much of the Postgres protocol as a proxy has to understand: where messages begin and end."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

SSL = 80877103
GSS = 80877104
CANCEL = 80877102
STARTUP = b""
"""The kind of a message that has none: everything up to the one that names user and database."""


class Message(NamedTuple):
    kind: bytes
    body: bytes

    @property
    def raw(self) -> bytes:
        return self.kind + struct.pack("!I", len(self.body) + 4) + self.body

    @property
    def code(self) -> int:
        """Of a message without kind: the protocol version, or what is asked for instead."""
        return int(struct.unpack_from("!I", self.body)[0])


class Reader:
    """Cuts a stream of bytes into messages."""

    def __init__(self, *, typed: bool) -> None:
        self.typed = typed
        self._bytes = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        self._bytes += data
        while (message := self._next()) is not None:
            yield message

    def _next(self) -> Message | None:
        at = 1 if self.typed else 0
        if len(self._bytes) < at + 4:
            return None
        end = at + int(struct.unpack_from("!I", self._bytes, at)[0])
        if len(self._bytes) < end:
            return None
        message = Message(self._bytes[:at], self._bytes[at + 4 : end])
        self._bytes = self._bytes[end:]
        if not self.typed and message.code not in {SSL, GSS}:
            self.typed = True
        return message


class Client:
    """Follows what a client says, and knows the text of each statement that it executes."""

    def __init__(self) -> None:
        self._reader = Reader(typed=False)
        self._statements: dict[bytes, bytes] = {}
        self._portals: dict[bytes, bytes] = {}

    def executed(self, data: bytes) -> Iterator[bytes]:
        """The texts of the statements that these bytes order to run."""
        for message in self._reader.feed(data):
            if message.kind == b"Q":
                yield message.body
            elif message.kind == b"P":
                name, text, _ = message.body.split(b"\0", 2)
                self._statements[name] = text
            elif message.kind == b"B":
                portal, name, _ = message.body.split(b"\0", 2)
                self._portals[portal] = self._statements.get(name, b"")
            elif message.kind == b"E":
                yield self._portals.get(message.body.split(b"\0", 1)[0], b"")


def strings(body: bytes) -> list[str]:
    return [part.decode() for part in body.split(b"\0")]

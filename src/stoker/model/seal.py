"""Sealed values as texts: how one is written, which key it needs, and what is said of one that stays closed.

A sealed value is one text, `~seal1~KEY~BODY`: the id of its key, and nonce, ciphertext and tag in base64. Where a store
keeps JSON it is a JSON string. Of an error the text begins with what stays readable, class and place, with a keyed
digest of the message in its place: errors that are the same stay the same, and their message is not to be read.

Encryption itself is in `stoker.engines.sealed`; nothing here needs a key.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple

from stoker.model.errors import InvalidName, SealedValue
from stoker.model.humanize import count
from stoker.model.ids import JobId

MARK: Final = "~seal1~"
OVERHEAD: Final = 12 + 16
"""Bytes of nonce and tag."""

OWN: Final = "stoker."
"""How the metadata of Stoker itself begins; it stays readable."""

_NO_KEY: Final = "closed"
CLOSED: Final = f"{MARK}{_NO_KEY}~"
"""In place of a value that could not be opened: before the reason."""

_ENVELOPE = re.compile(rf"{MARK}([A-Za-z0-9][A-Za-z0-9_.-]{{0,31}})~([A-Za-z0-9_-]+)(?:~([0-9a-f]{{32}}))?")
_REASON = re.compile(rf'{CLOSED}([^"]*)')
_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_JSON_MARK = f'"{MARK}'.encode()
JSON_CLOSED: Final = f'"{CLOSED}'.encode()
"""How JSON begins that stands for a value that could not be opened."""


class Envelope(NamedTuple):
    """A sealed value: the id of its key, nonce and ciphertext, and of an error the job it belongs to."""

    key: str
    body: bytes
    job: JobId | None = None

    @property
    def size(self) -> int:
        """Bytes of the value inside."""
        return len(self.body) - OVERHEAD


def check_key_id(key: str) -> str:
    """Check the id of a key: it is written into every sealed value."""
    if not isinstance(key, str) or not _KEY_ID.fullmatch(key):
        raise InvalidName("key id", key, "must be 1-32 of letters, digits, _ . - and begin with a letter or digit")
    if key == _NO_KEY:
        raise InvalidName("key id", key, "is what Stoker writes in place of values that cannot be opened")
    return key


def written(key: str, body: bytes, job: JobId | None = None) -> str:
    """A sealed value as text."""
    text = f"{MARK}{key}~{urlsafe_b64encode(body).rstrip(b'=').decode()}"
    return text if job is None else f"{text}~{job.hex()}"


def read(text: str) -> Envelope | None:
    """What `written` wrote; None: a text is something else, or more: what stands beside an envelope is not sealed."""
    found = _ENVELOPE.fullmatch(text)
    if found is None:
        return None
    body, job = found[2], found[3]
    if len(body) % 4 == 1:  # no base64 has this length
        return None
    raw = urlsafe_b64decode(body + "=" * (-len(body) % 4))
    return Envelope(found[1], raw, None if job is None else bytes.fromhex(job)) if len(raw) >= OVERHEAD else None


def as_json(text: str) -> bytes:
    """A sealed value where a store keeps JSON; its letters need no escape."""
    return b'"%b"' % text.encode()


def read_json(raw: bytes | None) -> Envelope | None:
    """The sealed value that JSON is; None: it is no such thing."""
    if raw is None or not raw.startswith(_JSON_MARK):
        return None
    return read(raw.decode(errors="replace")[1:-1])


def why_closed(raw: bytes | None) -> str | None:
    """Why a value that an app has read cannot be used; None: it is open."""
    if raw is None or not raw.startswith(_JSON_MARK):
        return None
    text = raw.decode(errors="replace")[1:-1]
    if text.startswith(CLOSED):
        return text.removeprefix(CLOSED)
    sealed = read(text)
    return None if sealed is None else f"it is sealed with key {sealed.key!r}, and this app has no seal="


def check_open(raw: bytes | None, field: str) -> None:
    """Refuse a value that could not be opened. Raises `SealedValue`."""
    if (why := why_closed(raw)) is not None:
        raise SealedValue(field, raw, f"cannot be read: {why}")


def sized(text: str) -> str:
    """A text for people: in place of sealed values their key and size, or why they could not be opened."""
    if MARK not in text:
        return text
    return _ENVELOPE.sub(_told, _REASON.sub(r"(\1)", text))


def sized_json(raw: bytes) -> bytes:
    """JSON for people who have no key."""
    return sized(raw.decode(errors="replace")).encode() if raw.startswith(_JSON_MARK) else raw


def _told(found: re.Match[str]) -> str:
    sealed = read(found[0])
    return f"(sealed with key {found[1]}, {count(max(sealed.size, 0), 'byte')})" if sealed is not None else found[0]

"""The keys of an app: they seal values, open them, prove what was copied, and hide unique keys.

AES-256-GCM with a random nonce for each value. What a value belongs to (its job, its field) is authenticated with it:
a value that was moved to another place in the store is not opened there.
"""

from __future__ import annotations

import os
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING, Final

from stoker.model.errors import InvalidInput, InvalidOption
from stoker.model.ids import JobId
from stoker.model.seal import Envelope, check_key_id, written

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_SIZE: Final = 32
_NONCE, _PROOF, _DIGEST = 12, 16, 16
_LETTERS = bytes.maketrans(b"0123456789abcdef", b"ghjkmnpqrstvwxyz")


class Closed(Exception):
    """A sealed value that these keys do not open."""


class Seal:
    """Keys that encrypt what an app stores about its jobs: `Stoker(..., seal=Seal(keys={"2026-11": key}))`.

    `keys` maps ids to keys of 32 bytes, as bytes or base64; the first one seals, all of them open. `digest` is the key
    of hidden unique keys and of the fingerprints of errors, which must not change while jobs hold such keys: the last
    one of `keys` unless it is given. With `plain=False` arguments, results, steps and messages that are stored in plain
    text are refused: say so when `stoker reseal` has sealed what was stored before.
    """

    def __init__(
        self, keys: Mapping[str, bytes | str], *, digest: bytes | str | None = None, plain: bool = True
    ) -> None:
        if not isinstance(keys, Mapping) or not keys:
            raise InvalidOption("keys", type(keys).__name__, "must map at least one id to a key, the current one first")
        read = {check_key_id(name): _key(f"key {name}", key) for name, key in keys.items()}
        aead = _cipher()
        self.current = next(iter(read))
        self.plain = plain
        self._ciphers: dict[str, AESGCM] = {name: aead(key) for name, key in read.items()}
        self._provers = {name: _derived(key, b"lineage") for name, key in read.items()}
        self._digests = _derived(read[next(reversed(read))] if digest is None else _key("digest", digest), b"digest")

    def __repr__(self) -> str:
        return f"Seal(keys={{{', '.join(f'{name!r}: ...' for name in self._ciphers)}}})"

    @property
    def keys(self) -> tuple[str, ...]:
        """The ids of the keys, the current one first."""
        return tuple(self._ciphers)

    # --- values -------------------------------------------------------------------------------------------------

    def close(self, value: bytes, field: str, place: bytes, job: JobId | None = None) -> str:
        """Encrypt a value for a field of a place, with the current key."""
        nonce = os.urandom(_NONCE)
        body = nonce + self._ciphers[self.current].encrypt(nonce, value, _bound(field, place))
        return written(self.current, body, job)

    def open(self, sealed: Envelope, field: str, places: Iterable[bytes]) -> bytes:
        """Decrypt a value that was sealed for this field of one of the places. Raises `Closed`."""
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(sealed.key)
        if cipher is None:
            raise Closed(f"it is sealed with key {sealed.key!r}, and there are only {', '.join(map(repr, self.keys))}")
        for place in places:
            try:
                return cipher.decrypt(sealed.body[:_NONCE], sealed.body[_NONCE:], _bound(field, place))
            except InvalidTag:
                continue
        raise Closed(
            f"key {sealed.key!r} does not open it: another key has this id, or the value was changed in the store or "
            "moved there from another place"
        )

    # --- copies -------------------------------------------------------------------------------------------------

    def prove(self, subject: bytes, origins: Sequence[JobId]) -> str:
        """A text that says: `subject` holds values that were sealed for these jobs."""
        body = b"".join(origins)
        proof = self._proof(self.current, subject, body)
        return f"{self.current}~{urlsafe_b64encode(proof + body).decode()}"

    def proven(self, text: str | None, subjects: Iterable[bytes]) -> tuple[JobId, ...]:
        """The jobs that `prove` named for one of the subjects; none where the proof is not of these keys."""
        name, _, body = (text or "").partition("~")
        if name not in self._provers:
            return ()
        try:
            raw = urlsafe_b64decode(body)
        except ValueError:
            return ()
        proof, origins = raw[:_PROOF], raw[_PROOF:]
        if not any(compare_digest(proof, self._proof(name, subject, origins)) for subject in subjects):
            return ()
        return tuple(origins[at : at + 16] for at in range(0, len(origins), 16))

    def _proof(self, name: str, subject: bytes, body: bytes) -> bytes:
        data = len(subject).to_bytes(4) + subject + body
        return blake2b(data, key=self._provers[name], digest_size=_PROOF).digest()

    # --- digests ------------------------------------------------------------------------------------------------

    def hidden(self, key: str) -> str:
        """What is stored in place of a unique key that is hidden; `key:` finds a job by it."""
        return f"digest:{blake2b(key.encode(), key=self._digests, digest_size=_DIGEST).hexdigest()}"

    def letters(self, text: str) -> str:
        """A digest of a text, of sixteen letters."""
        found = blake2b(text.encode(errors="replace"), key=self._digests, digest_size=8).hexdigest()
        return found.encode().translate(_LETTERS).decode()


def _bound(field: str, place: bytes) -> bytes:
    """What is authenticated with a value. A field holds no NUL but those between its parts, and a place comes last."""
    return b"stoker\0%b\0%b" % (field.encode(), place)


def _derived(key: bytes, use: bytes) -> bytes:
    """Another key for another use, from which the first one does not follow."""
    return blake2b(b"stoker", key=key, person=use, digest_size=KEY_SIZE).digest()


def _key(name: str, given: bytes | str) -> bytes:
    """A key as bytes; base64 in either alphabet is read. A refusal does not show it."""
    why = "must be 32 random bytes, as bytes or base64; `openssl rand -base64 32` prints some"
    if isinstance(given, str):
        try:
            given = b64decode(given.strip().translate(_ALPHABET), validate=True)
        except ValueError:
            raise InvalidOption(name, "a text", why) from None
    if not isinstance(given, bytes):
        raise InvalidOption(name, type(given).__name__, why)
    if len(given) != KEY_SIZE:
        raise InvalidOption(name, f"{len(given)} bytes", why)
    return given


_ALPHABET = str.maketrans("-_", "+/")


def _cipher() -> type[AESGCM]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise InvalidInput("seal", "Seal(...)", "needs the package cryptography: pip install 'stoker[seal]'") from None
    return AESGCM

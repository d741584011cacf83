"""The token of forms: a cookie holds the secret, and each answer shows it under another mask.

An answer that is compressed tells by its length how well a guess fits what is in it. Two answers share nothing of a
token that is masked anew, so that lengths tell nothing about the secret (the attack is called BREACH).
"""

from __future__ import annotations

import hmac
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode

BYTES = 32
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{86}")


def new_secret() -> str:
    """A secret for a browser."""
    return secrets.token_urlsafe(BYTES)


def is_secret(text: str) -> bool:
    """Has it the form of a secret?"""
    return _SECRET.fullmatch(text) is not None


def masked(secret: str) -> str:
    """A token that shows a secret under a fresh mask: the mask, and the secret combined with it."""
    mask = secrets.token_bytes(BYTES)
    return urlsafe_b64encode(mask + _xor(mask, _bytes(secret))).decode().rstrip("=")


def fits(secret: str, token: str) -> bool:
    """Does a token show this secret? It takes as long wherever they differ."""
    if not is_secret(secret) or _TOKEN.fullmatch(token) is None:
        return False
    found = _bytes(token)
    return hmac.compare_digest(_xor(found[:BYTES], found[BYTES:]), _bytes(secret))


def seal(secret: str, text: str) -> str:
    """What only this server and this browser can have made of a text: it is bound to the secret of the cookie."""
    return hmac.digest(_bytes(secret), text.encode(), "sha256").hex()[:32]


def is_seal(secret: str, text: str, given: str) -> bool:
    """Was the seal made of this text, for this browser?"""
    return is_secret(secret) and hmac.compare_digest(seal(secret, text).encode(), given.encode())


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(BYTES)

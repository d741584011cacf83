"""Access tokens and sessions: how people and programs sign in to the dashboard and the REST API.

Only the SHA-256 of a secret is stored, so a reader of the store cannot sign in with what is there.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Literal, TypeAlias

import msgspec

from stoker.model.access import ROLES, Identity, Role
from stoker.model.errors import InvalidInput
from stoker.model.job import check_name
from stoker.model.time import Instant
from stoker.model.unique import keep_plain

State: TypeAlias = Literal["valid", "expired", "revoked"]


class AccessToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token as stored, under its name. `queues` limits it to some queues; empty: no limit."""

    name: str
    sha256: str
    role: Role = "read"
    queues: tuple[str, ...] = ()
    created: Instant = 0
    expires: Instant | None = None
    revoked: Instant | None = None
    last_used: Instant | None = None

    def __post_init__(self) -> None:
        keep_plain(self, name=check_name("token", self.name))
        if self.role not in ROLES:
            raise InvalidInput("role", self.role, f"must be one of {', '.join(ROLES)}")
        keep_plain(self, queues=tuple(check_name("queue", queue) for queue in self.queues))
        _check_digest(self.sha256)

    def state(self, now: Instant) -> State:
        """May it be used now, and if not, why?"""
        if self.revoked is not None:
            return "revoked"
        return "valid" if self.expires is None or now < self.expires else "expired"

    def opens(self, secret: str, now: Instant) -> bool:
        """Is this the secret of this token, and may it be used now?"""
        return hmac.compare_digest(self.sha256, digest(secret)) and self.state(now) == "valid"

    @property
    def identity(self) -> Identity:
        """The identity that its holder gets."""
        return Identity(self.name, self.role, frozenset(self.queues))


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A signed-in browser, stored under its hash, with the rights that its token has now."""

    sha256: str
    token: str
    created: Instant
    expires: Instant

    def __post_init__(self) -> None:
        keep_plain(self, token=check_name("token", self.token))
        _check_digest(self.sha256)

    def opens(self, secret: str, now: Instant) -> bool:
        """Is this the secret of this session, and may it be used now?"""
        return hmac.compare_digest(self.sha256, digest(secret)) and now < self.expires


def _check_digest(sha256: str) -> None:
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise InvalidInput("sha256", "…", "must be 64 hexadecimal digits, as digest() makes them")


def digest(secret: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(secret.encode()).hexdigest()

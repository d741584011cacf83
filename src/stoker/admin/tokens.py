"""Access tokens for operators: make one, list them, revoke one. The secret is shown once and never stored."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

import msgspec

from stoker.admin.asking import Noun
from stoker.model.access import Role
from stoker.model.errors import InvalidInput, NotFound, shown
from stoker.model.time import Seconds, span
from stoker.model.tokens import AccessToken, digest

PREFIX = "stk_"
"""Tokens begin with it, so that scanners find one that leaked."""

ENTROPY = 32
"""Random bytes of a token."""


class TokensAdmin(Noun):
    """Who may sign in to the dashboard and the REST API."""

    async def create(
        self, name: str, role: Role = "read", *, queues: Iterable[str] = (), expires: Seconds | None = None
    ) -> str:
        """Make a token and return its secret, which cannot be read again. A name that is taken is refused."""
        lasts = None if expires is None else span(expires, "expires")
        if lasts == 0:
            raise InvalidInput("expires", expires, "must be more than 0: the token would never be good")
        engine = await self._asking.engine()
        now = await engine.now()
        secret = PREFIX + secrets.token_urlsafe(ENTROPY)
        token = AccessToken(
            name=name,
            sha256=digest(secret),
            role=role,
            queues=tuple(queues),
            created=now,
            expires=None if lasts is None else now + lasts,
        )
        if not await engine.documents.put_token(token, by=self._asking.signed()):
            raise InvalidInput("token", name, "is the name of another token; revoked ones keep theirs")
        return secret

    async def list(self) -> list[AccessToken]:
        """Every token, also those that expired or were revoked, by name."""
        return await (await self._asking.engine()).documents.tokens()

    async def revoke(self, name: str) -> None:
        """End a token; one that is revoked stays so. Raises `NotFound`."""
        engine = await self._asking.engine()
        while True:
            found = next((token for token in await engine.documents.tokens() if token.name == name), None)
            if found is None:
                raise NotFound(f"there is no token {shown(name)}")
            if found.revoked is not None:
                return
            revoked = msgspec.structs.replace(found, revoked=await engine.now())
            if await engine.documents.put_token(revoked, before=found, by=self._asking.signed()):
                return

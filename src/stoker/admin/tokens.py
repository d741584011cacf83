"""Access tokens for operators: make one, list them, revoke one. The secret is shown once and never stored."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import datetime

import msgspec

from stoker.admin import documents
from stoker.admin.context import Noun
from stoker.model.access import Role
from stoker.model.errors import InvalidInput, NotFound, shown
from stoker.model.time import Instant, Seconds, moment, span
from stoker.model.tokens import AccessToken, State, digest

PREFIX = "stk_"
"""Tokens begin with it, so that scanners find one that leaked."""

ENTROPY = 32
"""Random bytes of a token."""


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret, which is not stored; `queues` limits it to some, empty: no limit."""

    name: str
    role: Role
    queues: tuple[str, ...]
    created: datetime
    expires: datetime | None
    revoked: datetime | None
    state: State


class TokensAdmin(Noun):
    """Who may sign in to the dashboard and the REST API."""

    async def create(
        self,
        name: str,
        role: Role = "read",
        *,
        queues: Iterable[str] = (),
        expires: Seconds | None = None,
        create: bool = False,
    ) -> str:
        """Make a token and return its secret, which cannot be read again. A name that is taken is refused.

        A queue that is not known is refused too, unless `create` allows one ahead of its first job.
        """
        queues = tuple(queues)
        for queue in () if create else queues:
            await self._context.known_queue(queue)
        lasts = None if expires is None else span(expires, "expires")
        if lasts == 0:
            raise InvalidInput("expires", expires, "must be more than 0: the token would never be good")
        engine = await self._context.engine()
        now = await engine.now()
        secret = PREFIX + secrets.token_urlsafe(ENTROPY)
        token = AccessToken(
            name=name,
            sha256=digest(secret),
            role=role,
            queues=queues,
            created=now,
            expires=None if lasts is None else now + lasts,
        )
        if not await documents.put_token(engine, token, by=self._context.signed()):
            raise InvalidInput("token", name, "is the name of another token; revoked ones keep theirs")
        return secret

    async def list(self) -> list[TokenView]:
        """Every token, also those that expired or were revoked, by name."""
        engine = await self._context.engine()
        now = await engine.now()
        return [_view(one, now) for one in await documents.tokens(engine)]

    async def revoke(self, name: str) -> None:
        """End a token; one that is revoked stays so. Raises `NotFound`."""
        engine = await self._context.engine()
        while True:
            found = next((token for token in await documents.tokens(engine) if token.name == name), None)
            if found is None:
                raise NotFound(f"there is no token {shown(name)}")
            if found.revoked is not None:
                return
            revoked = msgspec.structs.replace(found, revoked=await engine.now())
            if await documents.put_token(engine, revoked, before=found, by=self._context.signed()):
                return


def _view(one: AccessToken, now: Instant) -> TokenView:
    return TokenView(
        name=one.name,
        role=one.role,
        queues=one.queues,
        created=moment(one.created),
        expires=None if one.expires is None else moment(one.expires),
        revoked=None if one.revoked is None else moment(one.revoked),
        state=one.state(now),
    )

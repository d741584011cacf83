"""Access tokens: make, list and revoke them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from stoker.admin.tokens import TokenView
from stoker.model.access import Role
from stoker.web.api import types as t
from stoker.web.api.endpoint import Noun, place
from stoker.web.pages.shared import needs_everything
from stoker.web.request import RequestContext

api = Noun("tokens")


class NewToken(t.Strict):
    """A token: its name, what it may do, the queues it is limited to, and after how many seconds it expires.

    `create` takes queues that are not known yet.
    """

    name: t.Name
    role: Role = "read"
    queues: Annotated[tuple[t.Name, ...], Meta(max_length=100)] = ()
    expires: t.Lasting | None = None
    create: bool = False


class NewSecret(Struct, kw_only=True):
    """The token itself, which cannot be read again."""

    name: str
    secret: str


class TokenList(Struct, kw_only=True):
    """Every token, also those that expired or were revoked, by name."""

    tokens: list[TokenView]


@api.get("/tokens", role="admin")
async def listed(visit: RequestContext) -> TokenList:
    """List tokens."""
    return TokenList(tokens=await visit.admin.tokens.list())


@api.post("/tokens", role="admin", status=201)
async def create(visit: RequestContext, given: NewToken) -> NewSecret:
    """Make a token."""
    needs_everything(visit)
    secret = await visit.admin.tokens.create(
        given.name, given.role, queues=given.queues, expires=given.expires, create=given.create
    )
    return NewSecret(name=given.name, secret=secret)


@api.delete("/tokens/{name}", role="admin")
async def revoke(visit: RequestContext) -> t.Done:
    """Revoke a token; dashboards notice within seconds."""
    needs_everything(visit)
    await visit.admin.tokens.revoke(place(visit, "name"))
    return t.Done()

"""Request context: identity, mount path, permissions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request

from stoker.model.access import Identity, Role
from stoker.web.csrf import masked
from stoker.web.problems import Problem

if TYPE_CHECKING:
    from stoker.admin import Operators
    from stoker.web.board import Dashboard


CSRF_COOKIE, SESSION_COOKIE = "stoker_csrf", "stoker_session"


class Entry(NamedTuple):
    """A session that was begun: what its cookie holds, and for how many seconds; None: until the browser ends."""

    cookie: str
    age: int | None = None


@dataclass
class RequestContext:
    """A request that passed the doors."""

    board: Dashboard
    request: Request
    id: str
    root: str
    csrf: str
    identity: Identity | None = None
    way: str = "page"
    counted: str = ""
    body: bytes | None = None
    _admin: Operators | None = None

    @cached_property
    def csrf_token(self) -> str:
        """What the forms of this answer show of the secret of the cookie."""
        return masked(self.csrf)

    @property
    def who(self) -> Identity:
        """The identity; pages behind the doors always have one."""
        assert self.identity is not None
        return self.identity

    @property
    def admin(self) -> Operators:
        """The questions and actions, under this identity's name."""
        if self._admin is None:
            self._admin = self.board.admin_for(self)
        return self._admin

    def may(self, role: Role, queue: str | None = None) -> bool:
        """May this visitor do what needs the role (in this queue)? No visitor may when all is read-only."""
        if role != "read" and self.board.read_only:
            return False
        who = self.identity
        return who is not None and who.may(role) and (queue is None or who.reaches(queue))

    def needs(self, role: Role) -> None:
        """Refuse a visitor whose role does not include this one."""
        if not self.who.may(role):
            what = f"This needs the role {role}; {self.who.name} has {self.who.role}."
            raise Problem(403, "role", f"{what} Nothing was changed.")

    def url(self, path: str, **parameters: Any) -> str:
        """An address below the mount."""
        given = {name: value for name, value in parameters.items() if value not in (None, "")}
        return f"{self.root}/{path.lstrip('/')}" + (f"?{urlencode(given)}" if given else "")

    @property
    def here(self) -> str:
        """The address of this page, with its parameters."""
        return self.request.url.path + (f"?{self.request.url.query}" if self.request.url.query else "")

    @property
    def is_browser(self) -> bool:
        """Does it ask for a page, as browsers do?"""
        return "text/html" in self.request.headers.get("accept", "")

    def cookie(self, name: str) -> str:
        """The value of one of our cookies as it was sent; empty without it."""
        return self.request.cookies.get(self.cookie_name(name), "")

    def cookie_name(self, name: str) -> str:
        """The name of one of our cookies.

        It has the port, because browsers send the cookies of a machine to each of its ports. On https it begins as
        browsers take it only from this host, and only over TLS.
        """
        port = re.search(r":(\d{1,5})$", self.request.headers.get("host", ""))
        placed = name if port is None else f"{name}_{port[1]}"
        if self.request.url.scheme != "https":
            return placed
        return f"__Secure-{placed}" if self.root else f"__Host-{placed}"

    def parameter(self, name: str, default: str = "") -> str:
        """A parameter of the address."""
        return self.request.query_params.get(name, default)

"""A call of the REST API, declared once: the function that does it says what it is, takes and answers.

Its summary is the docstring, its types are the annotations. Validation, routes, the OpenAPI document and the reference
page are made from these.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partialmethod
from typing import Any, TypeAlias, get_type_hints

import msgspec
from starlette.responses import Response

from stoker.admin.as_json import plain
from stoker.codec.json_check import DEPTH_LIMIT, TOO_DEEP, check_json
from stoker.model.access import Role
from stoker.web.board import Call, Route
from stoker.web.problems import Problem
from stoker.web.request import RequestContext

ROOT = "/api/v1"
Do: TypeAlias = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class Endpoint:
    """One call. `given` is read from the query for GET, else from the body; `answer` is what comes back."""

    method: str
    path: str
    role: Role
    summary: str
    do: Do
    answer: type
    given: type | None
    status: int
    tag: str
    harmless: bool = False
    media: str = "application/json"

    def route(self) -> Route:
        """The route of this call."""
        return Route(self.method, f"{ROOT}{self.path}", self.role, self._call(), "api", self.harmless)

    def _call(self) -> Call:
        async def call(visit: RequestContext) -> Response:
            visit.way = "token"
            if self.method != "GET" and getattr(visit.request.state, "csrf_owed", False):
                raise Problem(403, "csrf", "A change with a cookie needs the header X-CSRF-Token. Nothing was changed.")
            if self.given is None:
                refuse_parameters(visit)
                found = await self.do(visit)
            else:
                found = await self.do(visit, await self._read(visit))
            if isinstance(found, Response):
                return found
            return Response(msgspec.json.encode(plain(found)), self.status, media_type=self.media)

        return call

    async def _read(self, visit: RequestContext) -> Any:
        assert self.given is not None
        if self.method == "GET":
            pairs = visit.request.query_params.multi_items()
            if len({name for name, _ in pairs}) < len(pairs):
                raise Problem(422, "invalid", "A parameter may be given once.")
            return _converted(lambda: msgspec.convert(dict(pairs), self.given, strict=False))
        refuse_parameters(visit)
        raw = await visit.board.body(visit)
        if not raw:
            return _converted(lambda: msgspec.convert({}, self.given))
        kind = visit.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Problem(415, "content_type", "A body must be application/json. Nothing was changed.")
        found = _converted(lambda: msgspec.json.decode(raw, type=self.given))
        check_json(raw, "body", visit.board.limits.body, DEPTH_LIMIT + 1)  # a payload is one level below its body
        return found


class Noun:
    """The calls about one thing, in the order in which they are declared."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.endpoints: list[Endpoint] = []

    def add(
        self,
        method: str,
        path: str,
        *,
        role: Role | None = None,
        status: int = 200,
        harmless: bool = False,
        media: str = "application/json",
    ) -> Callable[[Do], Do]:
        """Declare a call; without a role, `read` for GET and `operate` for changes. `harmless`: it changes nothing."""
        needed: Role = role or ("read" if method == "GET" else "operate")

        def declare(do: Do) -> Do:
            hints, summary = get_type_hints(do), (do.__doc__ or "").partition("\n")[0].rstrip(".")
            given = next((hints[name] for name in list(inspect.signature(do).parameters)[1:]), None)
            answer = hints["return"]
            made = Endpoint(method, path, needed, summary, do, answer, given, status, self.tag, harmless, media)
            self.endpoints.append(made)
            return do

        return declare

    get = partialmethod(add, "GET")
    post = partialmethod(add, "POST")
    put = partialmethod(add, "PUT")
    patch = partialmethod(add, "PATCH")
    delete = partialmethod(add, "DELETE")


def refuse_parameters(visit: RequestContext) -> None:
    """Refuse parameters where none are taken: a misspelled one must not be ignored."""
    for name in visit.request.query_params:
        raise Problem(422, "invalid", f"There is no parameter {name[:80]!r} here.", field=name[:80])


def place(visit: RequestContext, name: str) -> str:
    """A part of the address."""
    return str(visit.request.path_params[name])


def _converted(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except msgspec.ValidationError as error:
        text = str(error)
        field = text.rpartition("`$")[2].rstrip("`").lstrip(".") if "`$" in text else None
        raise Problem(422, "invalid", f"{text}. Nothing was changed.", field=field or None) from None
    except RecursionError:
        raise Problem(422, "invalid", f"The body {TOO_DEEP}. Nothing was changed.", field="body") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Problem(400, "json", "The body is no JSON. Nothing was changed.") from None

"""ASGI app: checks (host, auth, CSRF, size, role), then the route.

Every request passes the same checks in this order: number of requests, host, who it is, method and read-only mode,
cross-site forgery, size, role. A route that names no role does not exist. What goes wrong becomes a page or problem
details with a request id, and nothing of a driver's words.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, quote, urlencode

from starlette._utils import get_route_path
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import compile_path
from starlette.types import Message, Receive, Scope, Send

from stoker.admin import Admin, Operators
from stoker.admin.admin import lacking, visited
from stoker.admin.context import OperatorContext
from stoker.admin.history import RECENT, closed
from stoker.admin.queues import MEASURED
from stoker.app import Stoker
from stoker.app_path import named, path_of, remember
from stoker.model.access import ROLES, Identity, Role, is_loopback
from stoker.model.errors import InvalidInput, StokerError
from stoker.model.events import Point
from stoker.model.job import Job
from stoker.model.redact import Redaction
from stoker.model.stats import BY_KIND, COUNTED, OF_ALL
from stoker.model.time import HOUR, MINUTE, SECOND, Instant
from stoker.web import charts, problems, sign_in
from stoker.web.auth import LOOPBACK_NAMES, Auth, Key, Open, Tokens, ask, came_through_a_proxy
from stoker.web.compress import compress
from stoker.web.counter_rates import Pace
from stoker.web.csrf import fits, is_secret, new_secret
from stoker.web.forms import Form
from stoker.web.health_cache import CheckUps
from stoker.web.hub import LIMIT, Hub
from stoker.web.per_minute import COMPLETED, Minutes
from stoker.web.problems import Problem
from stoker.web.request import CSRF_COOKIE, RequestContext

logger = logging.getLogger("stoker.web")

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # browsers send `Origin: null` with forms where no page is told the referrer
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
SAFE = frozenset({"GET", "HEAD"})
COLORS = ("red", "amber", "green", "blue", "grey")
MOST_EDITED = 100
MOST_RANGES = 20
"""The most ranges for which live pages keep the bars of queues."""
LEAST = ROLES[0]
"""What a visitor who is not known yet may do."""
WRONG_HOST = "This dashboard does not answer under that name. Allow it with --allow-host, in code with hosts=[...]."
_NO_KEY = (
    "No key was given, or another one. This dashboard asks for the key that was printed or set when it was started; it "
    "takes tokens only with --auth tokens."
)
_STRANGER = "The app around this dashboard does not know you. Sign in there first, then load this page again."
ACTION_LIMIT = 10.0
"""Seconds for a change, whose outcome is not known when it is given up."""

Call: TypeAlias = Callable[[RequestContext], Awaitable[Response]]
Kind: TypeAlias = Literal["page", "action", "api", "open"]


@dataclass(frozen=True)
class Limits:
    """Bounds on what a client may ask for; everything else is refused."""

    seconds: float = LIMIT
    body: int = 1 << 20
    body_seconds: float = 10
    requests: int = 64
    streams: int = 100
    streams_each: int = 10
    stream_seconds: float = 300
    send_seconds: float = 10
    enqueued_per_minute: int = 6_000
    waiting_per_queue: int = 1_000_000


@dataclass(frozen=True)
class Route:
    """A method and a path, who may go there, and what happens then."""

    method: str
    path: str
    role: Role
    call: Call
    kind: Kind = "page"
    harmless: bool = False
    """It is sent like a change, but changes nothing: it is there in read-only mode too."""

    @property
    def changes(self) -> bool:
        """Is it meant to change something?"""
        return self.method not in SAFE

    def pattern(self) -> re.Pattern[str]:
        """What the path matches."""
        return compile_path(self.path)[0]


class Edited(NamedTuple):
    """A job before its payload was edited, and the payload it was given."""

    before: Job
    payload: bytes


class Dashboard:
    """An ASGI app that can be served by itself or mounted below any path."""

    def __init__(
        self,
        jobs: Stoker | Operators,
        *,
        auth: Auth | None = None,
        login_url: str | None = None,
        env: str | None = None,
        color: str = "grey",
        read_only: bool = False,
        hosts: Iterable[str] | None = None,
        limits: Limits | None = None,
        late_after: float = 60.0,
        redact: Redaction | None = None,
        compress: bool = False,
    ) -> None:
        if not isinstance(jobs, Stoker) and lacking(jobs):
            raise InvalidInput("jobs", jobs, "must be your app, jobs = Stoker(...), or an admin of your own")
        if color not in COLORS:
            raise InvalidInput("color", color, f"must be one of {', '.join(COLORS)}")
        self._admin = Admin(jobs) if isinstance(jobs, Stoker) else jobs
        self.jobs = jobs = self._admin.app
        self.auth: Auth = Tokens() if auth is None else auth
        if login_url is not None and isinstance(self.auth, Open | Key | Tokens):
            raise InvalidInput("login_url", login_url, "goes with a function as auth=: others have their own sign-in")
        self.login_url = login_url
        self.env = env
        self.color = color
        self.read_only = read_only
        self._compress = compress
        self.limits = limits or Limits()
        self.redact = redact or Redaction()
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        if isinstance(self.auth, Open):
            if foreign := sorted((self._hosts or frozenset()) - LOOPBACK_NAMES):
                raise InvalidInput(
                    "hosts", foreign[0], "cannot be with Open(), which is for this machine: use Tokens()"
                )
            self._hosts = LOOPBACK_NAMES
        # Connections of its own, whose reads the store stops: a flood of pages must not take those that the app around
        # it enqueues with, nor keep the store from its workers.
        self.store = jobs.with_engine(jobs.root().for_loop(read_limit=self.limits.seconds))
        if (path := path_of(jobs)) is not None:
            remember(self.store, path)
        self.app_path = named(self.store)
        self.hub = Hub(self.store, redact=self.redact, late_after=round(late_after * SECOND))
        self._under_way: Counter[str] = Counter()
        self.minute: charts.PerMinute | None = None
        self._sparks: dict[str, dict[str, Sequence[float]]] = {}
        self.streams: Counter[str] = Counter()
        self.enqueued: dict[str, tuple[int, int]] = {}
        self.recent: Sequence[Point] = ()
        self._minutes = Minutes(COMPLETED)
        self.kind_minutes = Minutes(BY_KIND)
        self.walking: list[Operators] = []
        self.edited: dict[bytes, Edited] = {}
        self.check_ups = CheckUps()
        self.pace = Pace[tuple[str, str]]()
        self.door = sign_in.door(self.auth)
        from stoker.web.routes import routes

        self.routes = routes()
        self._compiled = [(route.pattern(), route) for route in self.routes]

    def __repr__(self) -> str:
        return f"<Dashboard {self.store.root().name}>"

    def admin_for(self, visit: RequestContext) -> Operators:
        """The operator's questions and actions, signed with the visitor's name and the request's id."""
        who = visit.identity
        context = OperatorContext(self.store, None, visit.way, self.redact, visit.id, LEAST, payloads=False)
        if who is not None:
            context = context._replace(by=who.name, role=who.role, queues=who.queues)
        return visited(self._admin, context)

    @property
    def signs_in(self) -> bool:
        """Do people sign in here?"""
        return self.door is not None

    async def points(self, drawn: charts.Range, now: Instant, queues: Iterable[str]) -> Sequence[Point]:
        """The points of all queues together over a range, read in one call with the bars of the queues given."""
        engine = await self.store.engine()
        metrics, named = (*charts.TOGETHER, COUNTED, *COMPLETED), frozenset(queues)
        found = await engine.timeline.points(drawn.since, drawn.until - 1, metrics, OF_ALL | named, width=drawn.merging)
        self._keep_sparks(drawn, named, [one for one in found if one.queue])
        together = [one for one in found if not one.queue]
        since, until = closed(now)
        if drawn.until > until:
            self.minute = charts.newest_flow(together, drawn, since)
        return together

    async def measure(self, drawn: charts.Range, now: Instant, queues: Iterable[str]) -> None:
        """Read what the table of these queues, which are all, shows: bars, and what went in and out lately."""
        engine = await self.store.engine()
        since, until = closed(now)
        if drawn.width == MINUTE and drawn.since > until - HOUR:
            await self._minutes.read(engine, now)
            points = self._minutes.points(drawn.since, drawn.until)
        else:
            points = await engine.timeline.points(drawn.since, drawn.until - 1, COMPLETED, width=drawn.merging)
        self._keep_sparks(drawn, frozenset(queues), points)
        self.recent = await engine.timeline.points(since, until, MEASURED, width=RECENT * MINUTE)

    def sparks(self, drawn: charts.Range) -> Mapping[str, Sequence[float]]:
        """The bars of queues over a range, as they were read last; a queue without an entry was not read."""
        return self._sparks.get(drawn.place, {})

    def _keep_sparks(self, drawn: charts.Range, queues: frozenset[str], points: Sequence[Point]) -> None:
        before = self._sparks.pop(drawn.place, {})
        self._sparks[drawn.place] = before | dict.fromkeys(queues, charts.NO_BARS) | charts.sparks(points, drawn)
        for oldest in list(self._sparks)[:-MOST_RANGES]:
            del self._sparks[oldest]

    def remember(self, id_: bytes, edited: Edited) -> None:
        """Keep what an edit replaced, so that it can be undone; of the latest hundred."""
        self.edited.pop(id_, None)
        self.edited[id_] = edited
        for oldest in list(self.edited)[:-MOST_EDITED]:
            del self.edited[oldest]

    async def close(self) -> None:
        """End the live streams and close the dashboard's own connections."""
        for admin in self.walking:
            await admin.operations.close()
        await self.hub.close()
        await self.store.close()

    # --- ASGI -------------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        root = str(scope.get("root_path", "")).rstrip("/")
        visit = RequestContext(self, request, secrets.token_hex(4), root, new_secret())
        csrf = visit.cookie(CSRF_COOKIE)
        known = is_secret(csrf)
        visit.csrf = csrf if known else visit.csrf
        sent = False

        async def guarded(message: Message) -> None:
            nonlocal sent
            if message["type"] == "http.response.start":
                sent = True
                self._dress(visit, message, fresh=not known)
            try:
                async with asyncio.timeout(self.limits.send_seconds):
                    await send(message)
            except TimeoutError:  # it takes nothing any more, and must not hold a stream or a request for ever
                raise ClientDisconnect from None

        try:
            response = await self._answer(visit)
            if isinstance(response, StreamingResponse):
                self._release(visit)  # it is no request any more: streams have bounds of their own
            if self._compress:
                compress(request, response)
            await response(scope, receive, guarded)
        except ClientDisconnect:
            return
        except Exception as error:
            if sent:
                raise
            await (await self._failed(visit, error))(scope, receive, guarded)
        finally:
            self._release(visit)

    def _count(self, visit: RequestContext, counted: str) -> None:
        """Count a request while it is under way: those before signing in apart, so that they keep no others out."""
        visit.counted = counted
        self._under_way[counted] += 1
        if self._under_way[counted] > self.limits.requests:
            raise Problem(503, "busy", "The dashboard answers as many requests as it may. Try again in a moment.")

    def _release(self, visit: RequestContext) -> None:
        self._under_way[visit.counted] -= 1 if visit.counted else 0
        visit.counted = ""

    def _dress(self, visit: RequestContext, message: Message, *, fresh: bool) -> None:
        headers = MutableHeaders(scope=message)
        for name, value in HEADERS.items():
            headers[name] = value
        headers.setdefault("cache-control", "no-store")
        headers["x-request-id"] = visit.id
        if fresh and headers.get("content-type", "").startswith("text/html"):
            headers.append("set-cookie", self.cookie(visit, CSRF_COOKIE, visit.csrf))

    def cookie(self, visit: RequestContext, name: str, value: str, *, age: int | None = None) -> str:
        """A cookie that scripts cannot read and other sites cannot send."""
        secure = "; Secure" if visit.request.url.scheme == "https" else ""
        lasts = "" if age is None else f"; Max-Age={age}"
        name = visit.cookie_name(name)
        return f"{name}={quote(value, safe='')}; Path={visit.root or '/'}; HttpOnly; SameSite=Strict{secure}{lasts}"

    # --- doors ------------------------------------------------------------------------------------------------------

    async def _answer(self, visit: RequestContext) -> Response:
        request = visit.request
        path = get_route_path(request.scope) or "/"
        _refuse_nul(path, *itertools.chain.from_iterable(request.query_params.multi_items()))
        routes = [(found, route) for pattern, route in self._compiled if (found := pattern.match(path)) is not None]
        asked = "GET" if request.method == "HEAD" else request.method
        found, route = next(((found, route) for found, route in routes if route.method == asked), (None, None))
        self._count(visit, "open" if route is not None and route.kind == "open" else "known")
        self._check_host(request)
        if route is not None and route.kind == "open":
            assert found is not None
            request.scope["path_params"] = found.groupdict()
            visit.identity = await self._identify(visit)
            if route.changes:
                self._check_csrf(visit)
                await self.body(visit)
            async with asyncio.timeout(ACTION_LIMIT):
                return await route.call(visit)
        visit.identity = await self._identify(visit)
        if route is not None and route.kind == "page" and (entered := await sign_in.bring_key(visit)) is not None:
            return entered
        if visit.identity is None:
            return self._sign_in(visit, path)
        if route is None or found is None:
            raise self._nowhere(routes, path)
        request.scope["path_params"] = found.groupdict()
        if _is_foreign(request):
            raise Problem(403, "origin", "A page of another site sent this request. Nothing was read or changed.")
        if route.changes:
            if self.read_only and not route.harmless:
                raise Problem(405, "read_only", "This dashboard is read-only. Nothing was changed.")
            self._check_csrf(visit)
        visit.needs(route.role)
        if route.changes:
            await self.body(visit)
        async with asyncio.timeout(ACTION_LIMIT if route.changes else self.limits.seconds):
            return await route.call(visit)

    def _nowhere(self, routes: list[tuple[re.Match[str], Route]], path: str) -> Problem:
        if routes:
            problem = Problem(405, "method", "This address is there, but not for this method.")
            problem.headers["allow"] = ", ".join(sorted({route.method for _, route in routes}))
            return problem
        return Problem(404, "not_found", f"There is no page at {path[:200]}.")

    def _check_host(self, request: Request) -> None:
        if self._hosts is None:
            return
        host = re.sub(r":\d+$", "", request.headers.get("host", "")).lower()
        if host not in self._hosts:
            raise Problem(421, "host", WRONG_HOST)

    async def _identify(self, visit: RequestContext) -> Identity | None:
        if isinstance(self.auth, Open):
            client = visit.request.client
            if client is None or not is_loopback(client.host):
                raise Problem(403, "remote", "This dashboard is open only to the machine it runs on.")
            if came_through_a_proxy(visit.request):
                raise Problem(403, "proxy", "A proxy sent this request, and this dashboard asks no token of its users.")
            return Identity(self.auth.name, self.auth.role)
        if self.door is not None:
            return await sign_in.identify(visit, self.door)
        assert not isinstance(self.auth, Key | Tokens)
        return await ask(self.auth, visit.request)

    async def still_knows(self, visit: RequestContext) -> bool:
        """Would this visitor be let in now, with the same rights? While the store is away nothing says otherwise."""
        if self.door is None:
            return True
        try:
            return await sign_in.identify(visit, self.door) == visit.identity
        except StokerError:
            return True

    def _sign_in(self, visit: RequestContext, path: str) -> Response:
        page = visit.request.method in SAFE and not path.startswith(("/api/", "/live"))
        if page and isinstance(self.auth, Key):
            response = sign_in.page(visit, visit.here, status=401)
            response.headers["www-authenticate"] = "Bearer"
            return response
        if page and isinstance(self.auth, Tokens):
            return RedirectResponse(visit.url("sign-in", next=visit.here), 303)
        if self.door is None:
            if page and visit.is_browser and self.login_url is not None:
                mark = "&" if "?" in self.login_url else "?"
                return RedirectResponse(f"{self.login_url}{mark}{urlencode({'next': visit.here})}", 303)
            raise Problem(401, "stranger", _STRANGER)
        by_key = isinstance(self.auth, Key)
        problem = Problem(401, "token", _NO_KEY if by_key else "No token was given, or it is not known or has expired.")
        problem.headers["www-authenticate"] = "Bearer"
        raise problem

    def _check_csrf(self, visit: RequestContext) -> None:
        """Refuse a change that another site's page sent with this browser's cookies."""
        request = visit.request
        if self.door is not None and "authorization" in request.headers:
            return  # no browser adds this header by itself
        site = request.headers.get("sec-fetch-site", "same-origin")
        if site not in {"same-origin", "none"} or _is_foreign(request):
            raise Problem(403, "csrf", "Another site sent this request. Nothing was changed.")
        request.state.csrf_owed = True
        header = request.headers.get("x-csrf-token")
        if header is not None:
            self.check_token(visit, header)

    def check_token(self, visit: RequestContext, given: str) -> None:
        """Compare the token of a form with that of the cookie."""
        if not fits(visit.cookie(CSRF_COOKIE), given):
            raise Problem(403, "csrf", "This form has expired. Nothing was changed. Load the page again.")
        visit.request.state.csrf_owed = False

    async def body(self, visit: RequestContext) -> bytes:
        """The whole body, up to the limit, if it comes in time."""
        if visit.body is not None:
            return visit.body
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                visit.body = await self._read_body(visit)
        except TimeoutError:
            seconds = f"{self.limits.body_seconds:g}"
            raise Problem(408, "slow", f"The request did not come within {seconds} s. Nothing was changed.") from None
        return visit.body

    async def _read_body(self, visit: RequestContext) -> bytes:
        length = visit.request.headers.get("content-length", "0")
        if re.fullmatch(r"[0-9]{1,18}", length) and int(length) > self.limits.body:
            raise _too_large(self.limits.body)
        parts, total = list[bytes](), 0
        async for part in visit.request.stream():
            total += len(part)
            if total > self.limits.body:
                raise _too_large(self.limits.body)
            parts.append(part)
        return b"".join(parts)

    async def form(self, visit: RequestContext) -> Form:
        """The fields of a form, whose token is checked."""
        kind = visit.request.headers.get("content-type", "").partition(";")[0].strip()
        raw = await self.body(visit)
        if raw and kind != "application/x-www-form-urlencoded":
            raise Problem(422, "invalid", "A form must be sent as application/x-www-form-urlencoded.")
        try:
            found = Form(parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=2_000))
        except ValueError:
            raise Problem(422, "invalid", "The form cannot be read. Nothing was changed.") from None
        _refuse_nul(*found.values())
        if getattr(visit.request.state, "csrf_owed", True):
            self.check_token(visit, found.get("csrf"))
        return found

    # --- what went wrong --------------------------------------------------------------------------------------------

    async def _failed(self, visit: RequestContext, error: Exception) -> Response:
        problem = problems.of(error)
        if problem is None:
            logger.error("request %s of the dashboard failed", visit.id, exc_info=error)
            problem = Problem(500, "fault", "Something broke in Stoker. The log has it under this request's id.")
        elif problem.status >= 500:
            logger.warning("request %s of the dashboard: %s: %s", visit.id, problem.code, type(error).__name__)
        from stoker.web.routes import refusal

        return await refusal(visit, problem)


def _too_large(most: int) -> Problem:
    return Problem(413, "too_large", f"A request may have {most:,} bytes at most. Nothing was changed.")


def _refuse_nul(*texts: str) -> None:
    """Refuse a character that some stores cannot hold, before any of them is asked."""
    if any("\0" in text for text in texts):
        raise Problem(422, "invalid", "The request contains a NUL character. Nothing was read or changed.")


def _is_foreign(request: Request) -> bool:
    """Did a page of another origin send it? Browsers say so with everything but plain navigation."""
    origin = request.headers.get("origin")
    return origin is not None and (
        origin == "null" or origin.partition("://")[2].lower() != request.headers.get("host", "").lower()
    )


def dashboard(
    jobs: Stoker | Operators,
    *,
    auth: Auth | None = None,
    login_url: str | None = None,
    env: str | None = None,
    color: str = "grey",
    read_only: bool = False,
    hosts: Iterable[str] | None = None,
    limits: Limits | None = None,
    late_after: float = 60.0,
    redact: Redaction | None = None,
    compress: bool = False,
) -> Dashboard:
    """Make the dashboard of an app, to be served by itself or mounted below a path of another app.

    `jobs` is the app, or an admin of your own on it: what pages and the REST API do and find goes through that, signed
    with the name of the visitor.
    `auth` is `Tokens()` (default), `Key()`, a function of the request that returns an `Identity` or None, or `Open()`
    for this machine only. With a function, a browser that it does not know is sent to `login_url`, where your app signs
    people in, with the address it came for as `next`; without `login_url` it gets a page that says so.
    `env` and `color` name the environment on every page. `read_only` refuses every change. `hosts` are the names it
    answers under; None leaves that to the app around it. A queue is falling behind when its oldest due job waits
    longer than `late_after` seconds, and than is usual in it. `redact` says which names make a value secret.
    `compress` sends pages, JSON and static files in gzip to those who take it; `stoker serve` does, and a server or a
    proxy around a mounted one often does already.
    """
    return Dashboard(
        jobs,
        auth=auth,
        login_url=login_url,
        env=env,
        color=color,
        read_only=read_only,
        hosts=hosts,
        limits=limits,
        late_after=late_after,
        redact=redact,
        compress=compress,
    )

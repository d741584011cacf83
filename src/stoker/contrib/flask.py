"""Stoker in Flask: an extension with the URL from `app.config`, `flask stoker …`, and the dashboard as a blueprint.

    jobs = FlaskStoker()            # at import, where the tasks are

    def create_app():
        app = Flask(__name__)
        app.config["STOKER_URL"] = "sqlite:///shop.db"
        jobs.init_app(app)
        return app

Views use the sync forms: `welcome.enqueue_sync(name)`. Handlers run inside `app.app_context()`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any

import click
import flask
from flask.cli import ScriptInfo

from stoker.app import Stoker, engine_maker
from stoker.cli.command import LazyGroup, stoker
from stoker.context import Context
from stoker.engine_pool import EnginePool
from stoker.engines.base import Engine
from stoker.handle import JobHandle
from stoker.hooks import Next, PlainNext
from stoker.model.access import Identity
from stoker.model.errors import InvalidInput, NotFound, StokerError, sentence
from stoker.sync import shared
from stoker.watching import EVENT_STREAM, STREAM_HEADERS, over
from stoker.web import Dashboard, Key, Open, Tokens
from stoker.web.bridge import answer_sync, http_scope, without_streams

__all__ = ["FlaskStoker", "dashboard", "job_stream"]

logger = logging.getLogger("stoker.flask")

PATH = "stoker.contrib.flask:find_jobs"
"""Where worker processes find the app of `flask stoker`: they load the Flask app that `$FLASK_APP` names."""

IDENTITY = "stoker.identity"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class FlaskStoker(Stoker):
    """A `Stoker` whose URL is `app.config["STOKER_URL"]`: `FlaskStoker(app)`, or `init_app(app)` in an app factory.

    It takes every other keyword of `Stoker`. Without that entry the URL is `$STOKER_URL`, else `sqlite:///stoker.db`.
    """

    def __init__(self, app: flask.Flask | None = None, **keywords: Any) -> None:
        self.flask: flask.Flask | None = None
        self._url: str | Engine | None = None
        self._bound = False
        self._opened_in = 0
        self._boards: list[Dashboard] = []
        middleware = [self._in_app_context, self._in_app_context_on_loop, *keywords.pop("middleware", ())]
        super().__init__(middleware=middleware, **keywords)
        if app is not None:
            self.init_app(app)

    def __repr__(self) -> str:
        return f"<FlaskStoker {len(self._tasks)} tasks>"

    def _make_pool(self, url: str | Engine | None, options: dict[str, Any]) -> EnginePool:
        if url is not None:
            raise InvalidInput("url", url, 'is app.config["STOKER_URL"] in Flask; leave it out here')
        self._options = options
        self._own = EnginePool(_unbound)
        return self._own

    def init_app(self, app: flask.Flask) -> None:
        """Use the store that this Flask app's configuration names, and give the app the command `flask stoker`.

        Call it when the configuration is complete. Called for another Flask app, as in tests, it moves there.
        """
        if not isinstance(app, flask.Flask):
            raise InvalidInput("app", app, "must be your app, app = Flask(__name__)")
        if app.extensions.get("stoker", self) is not self:
            raise InvalidInput("app", app, "has another Stoker already; an app has one")
        url = app.config.get("STOKER_URL")
        if not self._bound or url != self._url:
            self._own.point_at(engine_maker(url, self._options))
            self._url, self._bound = url, True
        self.flask = app
        if "stoker" not in app.extensions:
            app.extensions["stoker"] = self
            app.before_request(self._open_once)
            app.cli.add_command(_command())

    def _open_once(self) -> None:
        """Open the store before a process's first request: what joins a transaction needs its tables to be there."""
        if self.tested or self._opened_in == os.getpid():
            return
        self._opened_in = os.getpid()
        try:
            self.run(self.open())
        except StokerError as error:
            logger.warning("the store of jobs could not be opened: %s The next enqueue tries again.", sentence(error))

    async def close(self) -> None:
        """Close the engine of this loop and that of the sync callers, and the dashboards there."""
        if asyncio.get_running_loop() is shared.started:
            while self._boards:
                await self._boards.pop().close()
        await super().close()

    # --- around a handler ---------------------------------------------------------------------------------------

    def _in_app_context(self, call: PlainNext[Context, Any], context: Context) -> Any:
        """Run a plain handler inside the app's context, in its own thread or process."""
        if self.flask is None:
            return call(context)
        with self.flask.app_context():
            return call(context)

    async def _in_app_context_on_loop(self, call: Next[Context, Any], context: Context) -> Any:
        """Run an async handler inside the app's context."""
        task = self.find_task(context.kind)
        if self.flask is None or task is None or not task.is_async:
            return await call(context)
        with self.flask.app_context():
            return await call(context)


def _unbound() -> Engine:
    raise StokerError(
        "this FlaskStoker does not know its store yet. Nothing was stored. Call jobs.init_app(app) where the Flask app "
        "is made; run workers with `flask stoker work`, which makes it."
    )


# --- the command line ---------------------------------------------------------------------------------------------


def find_jobs() -> Stoker:
    """The `Stoker` of the Flask app at hand, else of the one that `$FLASK_APP` names."""
    here = flask.has_app_context()
    app = flask.current_app if here else ScriptInfo(os.environ.get("FLASK_APP")).load_app()
    found = app.extensions.get("stoker")
    if not isinstance(found, Stoker):
        raise StokerError(f"the Flask app {app.name!r} has no Stoker; call jobs.init_app(app) where it is made")
    return found


class _FlaskGroup(LazyGroup):
    """The commands of `stoker`, on the app that `flask` has found."""

    def invoke(self, ctx: click.Context) -> Any:
        """Enter the app's context, and name the app to the worker processes that a command may start."""
        info = ctx.ensure_object(ScriptInfo)
        if info.app_import_path:
            os.environ["FLASK_APP"] = info.app_import_path
        if not flask.has_app_context():
            ctx.with_resource(info.load_app().app_context())
        return super().invoke(ctx)


def _command() -> click.Group:
    settings = {**stoker.context_settings, "default_map": {"path": PATH}}
    return _FlaskGroup(
        "stoker", callback=stoker.callback, params=stoker.params, help=stoker.help, context_settings=settings
    )


# --- streams ------------------------------------------------------------------------------------------------------


def job_stream(job: JobHandle[Any]) -> flask.Response:
    """A response that follows a job as server-sent events: `new EventSource("/reports/…/stream")` in a browser.

    The events are those of `job.watch()`; a browser that loses the connection goes on behind the last event. A stream
    keeps a thread of the server busy until the job has ended or the browser goes. 404: there is no such job.
    """
    after = flask.request.headers.get("last-event-id") or None
    try:
        if over(after):
            return flask.Response(status=204)
        return flask.Response(job.sse_sync(after), mimetype=EVENT_STREAM, headers=STREAM_HEADERS)
    except NotFound as error:
        return flask.Response(str(error), 404, mimetype="text/plain")
    except InvalidInput as error:
        return flask.Response(str(error), 400, mimetype="text/plain")


# --- the dashboard ------------------------------------------------------------------------------------------------


def dashboard(
    jobs: FlaskStoker,
    *,
    auth: Callable[[], Identity | None] | Tokens | Key | Open | None = None,
    name: str = "stoker",
    **options: Any,
) -> flask.Blueprint:
    """The dashboard as a blueprint: `app.register_blueprint(dashboard(jobs, auth=who), url_prefix="/jobs")`.

    `auth`: a function without arguments, called in the request's context (`flask.session`, `current_user`), that
    returns an `Identity` or None; or one of `stoker.web`, by default `Tokens()`. `options` are those of
    `stoker.web.dashboard`. Live pages ask every 15 seconds: a stream would keep a thread of the server busy.
    """
    if not isinstance(jobs, FlaskStoker):
        raise InvalidInput("jobs", jobs, "must be your app, jobs = FlaskStoker()")
    who = auth if callable(auth) else None
    given = {**options, "limits": without_streams(options.get("limits"))}
    given["auth"] = auth if who is None else lambda request: request.scope[IDENTITY]
    made: dict[Engine, Dashboard] = {}

    def board() -> Dashboard:
        """The dashboard on the app's present store."""
        engine = jobs.root()
        if engine not in made:
            made.clear()
            made[engine] = Dashboard(jobs, **given)
            jobs._boards.append(made[engine])  # noqa: SLF001 - it is one of us
        return made[engine]

    def show(path: str) -> flask.Response:
        request, found = flask.request, board()
        whole = request.root_path + request.path
        scope = http_scope(
            method=request.method,
            scheme=request.scheme,
            path=whole,
            root=whole[: len(whole) - len(path)].rstrip("/"),
            query=request.query_string.decode("latin-1"),
            headers=list(request.headers),
            client=request.remote_addr,
            **{IDENTITY: None if who is None else who()},
        )
        answer = answer_sync(found, scope, request.stream.read(found.limits.body + 1))
        return flask.Response(answer.body, answer.status, answer.headers)

    if jobs.flask is not None:
        board()  # refuses a wrong option here
    blueprint = flask.Blueprint(name, __name__)
    blueprint.add_url_rule("/", "show", show, defaults={"path": ""}, methods=METHODS)
    blueprint.add_url_rule("/<path:path>", "show", show, methods=METHODS)
    return blueprint

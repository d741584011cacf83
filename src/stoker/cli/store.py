"""Which store a command works on, how its errors become exit codes, and how it asks and answers.

The app is named by `-A`, else `$STOKER_APP`, else `[tool.stoker] app = "app:jobs"` in pyproject.toml. Commands that
need no tasks take a `--url`, or `$STOKER_URL`, instead. Commands without other arguments take either one as it is.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import sys
import tomllib
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

import click

from stoker.app import Stoker
from stoker.cli.command import store_options
from stoker.cli.completion import COMPLETERS
from stoker.cli.text import safe, say
from stoker.model.errors import (
    EngineUnavailable,
    InvalidInput,
    InvalidTransition,
    KeyHeld,
    NotFound,
    StokerError,
    UnknownTask,
    WrongState,
)
from stoker.model.throttle import Rate
from stoker.model.time import SECOND, Span
from stoker.settings import read_span
from stoker.views import Curve

if TYPE_CHECKING:
    from stoker.admin import Operators

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

WAY: Final = "command line"
"""How the audit log names what is changed here."""

EXIT_CODES = """\b
Exit codes:
  0  done
  1  failed: the store cannot be used
  2  wrong usage
  3  not found
  4  refused by the state of the job
"""


_CODES = ((NotFound, 3), (UnknownTask, 3), (InvalidTransition, 4), (KeyHeld, 4), (WrongState, 4), (InvalidInput, 2))
"""Exit codes by error; every other one is 1."""


def on_store(command: F) -> F:
    """Give a command the options that name its store."""
    return store_options(command)


def on_target(command: Callable[..., T]) -> Callable[..., T]:
    """The same for a command without other arguments: its store may stand there, as in `stoker status app:jobs`."""

    @functools.wraps(command)
    def pointed(store: str | None, path: str | None, url: str | None, **given: Any) -> T:
        path, url = aimed(store, path, url)
        return command(path=path, url=url, **given)

    return click.argument("store", metavar="[MODULE:APP|URL]", required=False)(on_store(pointed))


def aimed(target: str | None, path: str | None, url: str | None) -> tuple[str | None, str | None]:
    """The app and the URL, one of which may stand by itself."""
    if target is None:
        return path, url
    if (other := path or url) is not None:
        raise click.UsageError(f"{safe(target)} and {safe(other)} name the store twice: give one of them")
    return (None, target) if "://" in target else (target, None)


def ask(path: str | None, url: str | None, call: Callable[[Operators], Awaitable[T]], *, creates: bool = False) -> T:
    """Open the store, await the call with its admin and close; errors end the command with their exit code.

    The app is imported before a loop runs, because its modules may use one. What a store warns of when it is opened is
    not logged: `status` and `doctor` show it. `creates`: a store of an app that is not there yet is made.
    """
    import asyncio
    import logging

    logging.getLogger("stoker.engines").setLevel(logging.ERROR)

    async def inside(admin: Operators) -> T:
        await _open(admin.app)
        async with admin.app:
            return await call(admin)

    with reported():
        return asyncio.run(inside(find_admin(path, url, creates=creates)))


def run(path: str | None, url: str | None, call: Callable[[Stoker], Awaitable[T]]) -> T:
    """The same for a call that needs the app itself."""
    return ask(path, url, lambda admin: call(admin.app))


def find_app(path: str | None, url: str | None) -> Stoker:
    """The app that the options, the environment or pyproject.toml name; its store exists."""
    return find_admin(path, url).app


def find_admin(path: str | None, url: str | None, *, creates: bool = False) -> Operators:
    """The admin of that app; a path may name an admin of the user's own, which is used as it is.

    A store that does not exist is refused, unless it is the one of an app and the command `creates` it.
    """
    from stoker.admin import Admin  # a worker needs this module, and no admin

    app = app_named(path, url)
    found = _bare(url) if app is None else _load(app)
    admin = Admin(found, by=user(), way=WAY) if isinstance(found, Stoker) else found
    if app is None or not creates:
        _check_exists(admin.app)
    return admin


def user() -> str | None:
    """Who types: the name that the environment or the system has for them."""
    import getpass

    names = [name for key in ("USER", "LOGNAME", "USERNAME") if (name := os.environ.get(key))]
    try:
        return names[0] if names else getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user id without a name
        return None


def _load(path: str) -> Stoker | Operators:
    from stoker.admin.admin import Operators, lacking
    from stoker.app_path import NotImportable, load, load_any
    from stoker.cli.work import imported

    def either(path: str) -> Stoker | Operators:
        found: object = load_any(path)
        missing = lacking(found)
        if not missing:
            return cast(Operators, found)
        if not isinstance(found, Stoker) and hasattr(found, "app"):
            raise NotImportable(f"{path} is a {type(found).__name__}, which lacks {', '.join(missing)} of an admin")
        return load(path)

    return imported(path, either)


def app_named(path: str | None, url: str | None = None) -> str | None:
    """Where the app is that the option, the environment or pyproject.toml names; None: a URL names the store."""
    if path is not None and url is not None:
        raise click.UsageError(f"--app {safe(path)} and --url {safe(url)} name the store twice: give one of them")
    if url is not None:
        return None
    return path if path is not None else os.environ.get("STOKER_APP") or _in_pyproject()


def named(path: str | None, url: str | None) -> Stoker | Operators:
    """The app, or the admin, that the options, the environment or pyproject.toml name."""
    app = app_named(path, url)
    return _bare(url) if app is None else _load(app)


def _bare(url: str | None) -> Stoker:
    """An app without tasks, on the store of a URL or of `$STOKER_URL`."""
    if url is not None or os.environ.get("STOKER_URL"):
        return Stoker(url, timeline=False)
    raise click.UsageError(
        "which store? Give -A MODULE:APP or --url URL, set $STOKER_APP or $STOKER_URL, "
        'or write [tool.stoker] app = "app:jobs" in pyproject.toml'
    )


async def _open(app: Stoker) -> None:
    """Open the store; of one that is away say where it should be, and that nothing was asked of it yet."""
    try:
        await app.open()
    except EngineUnavailable:
        raise EngineUnavailable(
            f"{app.root().where} cannot be reached. Nothing was read or changed. Is the server up, and the address "
            "right? Then type this again."
        ) from None


def exists(app: Stoker) -> bool:
    """Is the store there, as far as can be told without opening it? Opening a SQLite file that is not makes one."""
    engine = app.root()
    return engine.name != "sqlite" or Path(engine.where).exists()


def _check_exists(app: Stoker) -> None:
    """Refuse a store that is not there: opening it would make an empty one of a typing error."""
    if not exists(app):
        raise EngineUnavailable(
            f"there is no store at {app.root().where}. Nothing was created. Is the path right? "
            "`stoker migrate` makes a store, and so does the first worker or enqueue of the app."
        )


def _in_pyproject() -> str | None:
    file = Path("pyproject.toml")
    try:
        found = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None
    app = found.get("tool", {}).get("stoker", {}).get("app")
    return app if isinstance(app, str) else None


@contextmanager
def reported() -> Generator[None, None, None]:
    """End the command with a sentence and an exit code when Stoker raises."""
    try:
        yield
    except StokerError as error:
        say(f"Error: {safe(str(error))}", err=True)
        raise SystemExit(next((code for kinds, code in _CODES if isinstance(error, kinds)), 1)) from None


def not_listening(host: str, port: int, error: OSError) -> str:
    """Why nothing can be served there."""
    why = {errno.EADDRINUSE: "another program uses it", errno.EACCES: "this user may not use it"}
    because = why.get(error.errno or 0, "it is no address of this machine")
    return safe(f"nothing is served: {host} port {port} cannot be used: {because}. Name another one with --port.")


def as_json_option(command: Callable[P, T]) -> Callable[P, T]:
    """Give a command the option `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="As one object.")(command)


def create_option(command: Callable[P, T]) -> Callable[P, T]:
    """Give a command the option `--create`."""
    text = "Accept a name that is not known yet."
    return click.option("--create", is_flag=True, help=text)(command)


def hinted(text: str) -> None:
    """Say beside the output that a name is not known."""
    if text:
        say(f"note: {text}", err=True)


def said(text: str, as_json: bool, **facts: Any) -> None:
    """Say what was done, in a sentence or as an object."""
    say(json.dumps(facts) if as_json else safe(text))


def act_on(
    group: click.Group,
    name: str,
    text: str,
    done: str,
    call: Callable[..., Awaitable[object]] | None = None,
    *,
    on: Sequence[str] = (),
    asks: str = "",
    **facts: object,
) -> None:
    """Add a command that does one thing to what its arguments name, and says so: `stoker queues resume mail`.

    The group's noun of the admin has a method of the same `name`, unless there is another `call`. `on` are the
    arguments, by default the noun alone; `done` is said afterwards, and `asks` is asked before.
    """
    noun = str(group.name)
    arguments = on or (noun.removesuffix("s"),)

    def command(as_json: bool, path: str | None, url: str | None, yes: bool = False, **given: str) -> None:
        named = {one: given[one] for one in arguments}
        if asks:
            confirm(asks.format(**named), yes=yes)
        do = call or (lambda admin, *values: getattr(getattr(admin, noun), name)(*values))
        ask(path, url, lambda admin: do(admin, *named.values()))
        said(done.format(**named), as_json, **named, **facts)

    decorated: Any = as_json_option(on_store(command))
    if asks:
        decorated = click.option("--yes", is_flag=True, help="Do not ask.")(decorated)
    for one in reversed(arguments):
        decorated = click.argument(one, shell_complete=COMPLETERS.get(one))(decorated)
    group.command(name, help=text, epilog=EXIT_CODES)(decorated)


def confirm(question: str, *, yes: bool) -> None:
    """Go on only with a yes; without a terminal no user can say it."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{safe(question)} Nothing was changed: there is no terminal to ask on; say --yes")
    click.confirm(safe(question), abort=True)


def read(what: Callable[[], T]) -> T:
    """Read what was typed; a refusal by Stoker is wrong usage."""
    try:
        return what()
    except StokerError as error:
        raise click.UsageError(safe(str(error))) from None


def read_time(option: str, text: str) -> Span:
    """Read a time as it is typed, such as 30m."""
    try:
        return read_span(text)
    except InvalidInput as error:
        raise click.BadParameter(f"{text!r} {error.why}", param_hint=option) from None
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}", param_hint=option) from None


def read_moment(option: str, text: str) -> datetime:
    """Read a moment as it is typed, such as 2026-11-16T14:00; UTC without a zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a moment, as in 2026-11-16T14:00", param_hint=option) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


_UNITS = {"second": "s", "sec": "s", "minute": "m", "min": "m", "hour": "h", "day": "d"}


def read_rate(option: str, text: str) -> Rate:
    """Read a rate as it is typed, such as 100/1m or 2000/min."""
    number, slash, per = text.partition("/")
    per = _UNITS.get(per.lower(), per)
    try:
        n = float(number)
        if not slash:
            raise ValueError
    except ValueError:
        why = f"{text!r} is not a number of starts per time, as in 100/1m"
        raise click.BadParameter(why, param_hint=option) from None
    seconds = read_time(option, per if per[:1].isdigit() else f"1{per}") / SECOND
    return read(lambda: Rate(n, seconds))


def read_curve(option: str, text: str) -> Curve:
    """Read the waits of a queue as they are typed, such as 5s..10m."""
    base, dots, longest = text.partition("..")
    if not dots:
        raise click.BadParameter(f"{text!r} is not a wait and the longest one, as in 5s..10m", param_hint=option)
    waits = [read_time(option, each) / SECOND for each in (base, longest)]
    return Curve(*waits)

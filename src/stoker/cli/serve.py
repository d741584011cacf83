"""`stoker serve`: the dashboard and the REST API of an app."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys

import click

from stoker.app import Stoker
from stoker.cli import logs
from stoker.cli.store import exists, find_admin, not_listening, on_target, reported
from stoker.cli.text import safe, say
from stoker.model.access import is_loopback

VARIABLE = "STOKER_DASHBOARD_KEY"

WHO = {"open": "everybody on this machine", "tokens": "every holder of a token", "key": "every holder of its key"}


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8642, show_default=True, metavar="PORT", help="Its port."
)
@click.option("--auth", type=click.Choice(["key", "tokens", "open"]), help="Default: key on this machine, else tokens.")
@click.option(
    "--key",
    metavar="KEY",
    help="The key, instead of a new one. Prefer $STOKER_DASHBOARD_KEY, which other users cannot see.",
)
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name it answers under; repeatable.")
@click.option("--env", metavar="NAME", help="Name of the environment, shown on every page.")
@click.option(
    "--color",
    type=click.Choice(["red", "amber", "green", "blue", "grey"]),
    default="grey",
    help="Color of the environment.",
)
@click.option("--read-only", is_flag=True, help="Refuse every change.")
@click.option("--root-path", default="", metavar="PATH", help="The path below which a proxy serves it.")
@logs.options
@on_target
def serve(
    host: str,
    port: int,
    auth: str | None,
    key: str | None,
    hosts: tuple[str, ...],
    env: str | None,
    color: str,
    read_only: bool,
    root_path: str,
    log_format: logs.Format,
    log_level: str,
    path: str | None,
    url: str | None,
) -> None:
    """Serve the dashboard and the REST API: `stoker serve app:jobs`. It creates the app's store if there is none.

    On this machine it asks for a key: it prints an address with a new key, valid until it ends. Elsewhere it
    asks for a token (`stoker tokens create`) and answers only under the names that --allow-host gives.
    """
    try:
        import uvicorn

        from stoker.web import Key, Open, Tokens, dashboard
        from stoker.web.auth import LOOPBACK_NAMES, Auth
        from stoker.web.server import config
        from stoker.web.start import prepare
    except ImportError:
        raise click.ClickException("the dashboard needs starlette, jinja2 and uvicorn: install stoker[web]") from None
    here = is_loopback(host)
    auth = auth or ("key" if here else "tokens")
    if auth == "open" and (outside := _outside(host, hosts, root_path, LOOPBACK_NAMES)):
        raise click.UsageError(
            f"{outside}, and --auth open lets everybody in. Nothing was started. Use --auth tokens, or --auth key."
        )
    if auth != "key" and key is not None:
        raise click.UsageError(f"--key is for --auth key, and this is --auth {auth}. Nothing was started.")
    root_path = root_path.rstrip("/")
    if not re.fullmatch(r"(/(?!\.{1,2}(/|$))[\w.~-]+)*", root_path, re.ASCII):
        raise click.UsageError(f"--root-path {safe(root_path)} is not a path, as in /jobs. Nothing was started.")
    if not here and not hosts:
        raise click.UsageError(
            f"{safe(host)} can be reached from other machines: name the hosts it answers under, as in "
            "--allow-host stoker.example.com. Nothing was started."
        )
    logs.configure(log_format, log_level)
    with reported():
        admin = find_admin(path, url, creates=not read_only)
        if not exists(admin.app):
            asyncio.run(_made(admin.app))
            say(f"there was no store at {admin.app.root().where}: it is made, and empty", err=True)
        given = key if key is not None else os.environ.get(VARIABLE) or None
        sign_in: Auth = Open() if auth == "open" else Tokens()
        if auth == "key":
            sign_in = Key() if given is None else Key(given)
        names = LOOPBACK_NAMES | frozenset(hosts)
        board = dashboard(admin, auth=sign_in, env=env, color=color, read_only=read_only, hosts=names, compress=True)
    server = uvicorn.Server(config(board, host=host, port=port, root_path=root_path))
    if not here:
        say(
            "warning: it is served without TLS, so anyone on the network can read tokens and payloads. Put a proxy "
            "that ends TLS in front of it",
            err=True,
        )
    prepare()
    listening = _listening(host, port)
    at = f"http://{name_of(host, hosts)}:{listening.getsockname()[1]}{root_path}/"
    if isinstance(sign_in, Key) and (given is None or sys.stderr.isatty()):  # a log must not keep a key of the user's
        at += f"?key={sign_in.secret}"
    say(f"the dashboard of {admin.app.root().where} is at {at} for {WHO[auth]}", err=True)
    try:
        server.run([listening])
    except SystemExit:  # it said why on standard error; its own code means something else here
        raise SystemExit(1) from None
    if not server.started:
        raise SystemExit(1)


async def _made(app: Stoker) -> None:
    """Make the store of an app, as its first worker would."""
    async with app:
        pass


def name_of(host: str, hosts: tuple[str, ...]) -> str:
    """The name under which it answers: of a server for other machines its address alone is refused."""
    near = host if is_loopback(host) else hosts[0]
    return f"[{near}]" if near.count(":") > 1 and not near.startswith("[") else near


def _outside(host: str, hosts: tuple[str, ...], root_path: str, near: frozenset[str]) -> str:
    """Why other machines may reach it; empty: they may not."""
    if not is_loopback(host):
        return f"{safe(host)} can be reached from other machines"
    if foreign := [name for name in hosts if name.lower() not in near]:
        return f"--allow-host {safe(foreign[0])} is a name for other machines"
    return f"--root-path {safe(root_path)} means a proxy, behind which anyone may be" if root_path else ""


def _listening(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that the address that is printed is served."""
    found: socket.socket | None = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as error:
        if found is not None:
            found.close()
        raise click.ClickException(not_listening(host, port, error)) from None
    return found

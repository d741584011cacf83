"""`stoker serve`: the dashboard and the REST API of an app."""

from __future__ import annotations

import socket

import click

from stoker.cli.store import find_app, not_listening, on_store, reported
from stoker.cli.text import safe
from stoker.model.access import is_loopback


@click.command()
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8642, show_default=True, metavar="PORT", help="Its port."
)
@click.option("--auth", type=click.Choice(["open", "tokens"]), help="Default: open on this machine, else tokens.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name it answers under; repeatable.")
@click.option("--env", metavar="NAME", help="Name of the environment, shown on every page.")
@click.option(
    "--color", type=click.Choice(["red", "amber", "green", "blue", "grey"]), default="grey", help="Its colour."
)
@click.option("--read-only", is_flag=True, help="Refuse every change.")
@click.option("--root-path", default="", metavar="PATH", help="The path below which a proxy serves it.")
@on_store
def serve(
    target: str | None,
    host: str,
    port: int,
    auth: str | None,
    hosts: tuple[str, ...],
    env: str | None,
    color: str,
    read_only: bool,
    root_path: str,
    path: str | None,
    url: str | None,
) -> None:
    """Serve the dashboard and the REST API.

    On this machine everybody may use it. Elsewhere it asks for a token (`stoker tokens create`) and answers only under
    the names that --allow-host gives.
    """
    try:
        import uvicorn

        from stoker.web import Open, Tokens, dashboard
        from stoker.web.auth import LOOPBACK_NAMES
        from stoker.web.start import prepare
    except ImportError:
        raise click.ClickException("the dashboard needs starlette, jinja2 and uvicorn: install stoker[web]") from None
    here = is_loopback(host)
    if not here and auth == "open":
        raise click.UsageError(
            f"{safe(host)} can be reached from other machines, and --auth open lets everybody in. Nothing was started. "
            "Leave --auth out to ask for tokens, or listen on 127.0.0.1."
        )
    if not here and not hosts:
        raise click.UsageError(
            f"{safe(host)} can be reached from other machines: name the hosts it answers under, as in "
            "--allow-host stoker.example.com. Nothing was started."
        )
    with reported():
        app = find_app(target or path, url)
        sign_in = Tokens() if auth == "tokens" or not here else Open()
        names = LOOPBACK_NAMES | frozenset(hosts)
        board = dashboard(app, auth=sign_in, env=env, color=color, read_only=read_only, hosts=names)
    config = uvicorn.Config(
        board,
        host=host,
        port=port,
        root_path=root_path,
        log_level="warning",
        server_header=False,
        limit_concurrency=400,
        h11_max_incomplete_event_size=64 * 1024,
        timeout_graceful_shutdown=3,
    )
    server = uvicorn.Server(config)
    if not here:
        click.echo(
            "warning: it is served without TLS, so anyone on the network can read tokens and payloads. Put a proxy "
            "that ends TLS in front of it",
            err=True,
        )
    prepare()
    listening = _listening(host, port)
    shown = f"[{host}]" if ":" in host else host
    who = "everybody on this machine" if isinstance(sign_in, Open) else "every holder of a token"
    at = f"http://{shown}:{listening.getsockname()[1]}{root_path}/"
    click.echo(f"the dashboard of {app.root().where} is at {at} for {who}", err=True)
    try:
        server.run([listening])
    except SystemExit:  # it said why on standard error; its own code means something else here
        raise SystemExit(1) from None
    if not server.started:
        raise SystemExit(1)


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

"""`stoker metrics`: the store's metrics for Prometheus, once or on a port."""

from __future__ import annotations

import click

from stoker.cli.store import find_app, not_listening, on_target, reported, run
from stoker.cli.text import say


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve them until stopped.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address of that port.")
@on_target
def metrics(port: int | None, host: str, path: str | None, url: str | None) -> None:
    """Print the metrics of a store in the text format of Prometheus, or serve them on a port."""
    try:
        from stoker.observe import prometheus
        from stoker.observe.metrics import read
    except ImportError:
        raise click.ClickException("metrics need prometheus-client: install stoker[prometheus]") from None
    if port is None:
        say(prometheus.text(run(path, url, read)), nl=False)
        return
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    with reported():
        registry.register(prometheus.StoreCollector(find_app(path, url)))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise click.ClickException(not_listening(host, port, error)) from None
    say(f"metrics are served at http://{host}:{server.server_port}/metrics", err=True)
    try:
        thread.join()
    except KeyboardInterrupt:
        server.shutdown()

"""`stoker serve` and `stoker tokens`, as an operator types them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stoker.app import Stoker
from stoker.cli.command import stoker


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("STOKER_URL", url)
    monkeypatch.delenv("STOKER_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    app = Stoker(url)
    app.declare("send")
    app.run(app.enqueue(app.draft("send")))
    app.run(app.close())
    return url


def call(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(stoker, list(words))
    assert done.exit_code == code, done.output
    return done


@pytest.mark.spec("WEBSEC-15")
def test_it_refuses_to_be_open_to_other_machines(url: str) -> None:
    assert "lets everybody in" in call("serve", "--host", "0.0.0.0", "--auth", "open", code=2).output
    assert "--allow-host" in call("serve", "--host", "0.0.0.0", code=2).output
    assert "--allow-host" in call("serve", "--host", "::", code=2).output


@pytest.mark.spec("WEBSEC-18")
def test_it_warns_where_others_reach_it_without_tls(url: str) -> None:
    """The address is one that no machine has, so nothing is served."""
    told = call("serve", "--host", "192.0.2.1", "--allow-host", "stoker.example", code=1).output
    assert "warning: it is served without TLS" in told


@pytest.mark.spec("WEBSEC-15")
def test_it_serves_this_machine_and_ends_on_a_signal(url: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "stoker", "serve", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "STOKER_URL": url}) as server:
        try:
            page = _wait(f"http://127.0.0.1:{port}/jobs")
            assert "send" in page
            assert _status(f"http://127.0.0.1:{port}/", {"Host": "evil.example"}) == 421
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(90)
        assert server.stderr is not None
        assert b"TLS" not in server.stderr.read()
    assert server.returncode in {0, -signal.SIGTERM}


def _wait(address: str) -> str:
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(address) as answer:
                return str(answer.read().decode())
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)


def _status(address: str, headers: dict[str, str]) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.spec("WEBSEC-16")
def test_tokens_are_made_listed_and_revoked(url: str) -> None:
    secret = call("tokens", "create", "ci", "--role", "operate", "--queue", "mail", "--expires", "90d").stdout.strip()
    assert secret.startswith("stk_")
    [listed] = [json.loads(line) for line in call("tokens", "list", "--json").stdout.splitlines()]
    assert (listed["name"], listed["role"], listed["queues"], listed["revoked"]) == ("ci", "operate", ["mail"], None)
    assert secret not in call("tokens", "list").stdout
    call("tokens", "revoke", "ci")
    assert "revoked" in call("tokens", "list").stdout
    call("tokens", "revoke", "nobody", code=3)
    call("tokens", "create", "ci", code=2)
    call("tokens", "create", "x", "--expires", "soon", code=2)

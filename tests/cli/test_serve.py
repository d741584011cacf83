"""`stoker serve` and `stoker tokens`, as an operator types them."""

from __future__ import annotations

import gc
import gzip
import json
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stoker.app import Stoker
from stoker.cli import serve
from stoker.cli.command import stoker
from stoker.web import view

ROOT = Path(__file__).resolve().parents[2]
FILES = {"stoker.css", "stoker.js", "chart.js", "flame.svg", "htmx.min.js", "hx-sse.min.js", "uPlot.iife.min.js"}
"""What the overview loads; its style and fonts are among the rest."""


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
    for words in (["--host", "0.0.0.0"], ["--allow-host", "stoker.example.com"], ["--root-path", "/jobs"]):
        refused = call("serve", *words, "--auth", "open", code=2).output
        assert "lets everybody in" in refused
        assert "--auth tokens" in refused
    assert "--allow-host" in call("serve", "--host", "0.0.0.0", code=2).output
    assert "--allow-host" in call("serve", "--host", "::", code=2).output


@pytest.mark.spec("WEBSEC-21")
def test_a_key_that_can_be_guessed_or_is_not_used_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--key is for --auth key" in call("serve", "--key", "k" * 20, "--auth", "tokens", code=2).output
    assert "got 1 character. Nothing was started." in call("serve", "--key", "k", code=2).output
    for weak in ("", "letmein"):
        assert "16 to 200 letters" in call("serve", "--key", weak, code=2).output
    monkeypatch.setenv("STOKER_DASHBOARD_KEY", "letmein")
    refused = call("serve", code=2).output
    assert "16 to 200 letters" in refused
    assert "letmein" not in refused
    assert "got 7 characters. Nothing was started." in refused


@pytest.mark.spec("CLI-62")
def test_the_name_that_is_printed_is_answered_under() -> None:
    assert serve.name_of("127.0.0.1", ("stoker.example",)) == "127.0.0.1"
    assert serve.name_of("::1", ()) == "[::1]"
    assert serve.name_of("0.0.0.0", ("stoker.example", "b.example")) == "stoker.example"


@pytest.mark.spec("CLI-62")
@pytest.mark.parametrize("path", ["jobs", "/a/../b", "/a//b", "/a b", "/?x", "/."])
def test_a_root_path_that_is_none_is_refused(url: str, path: str) -> None:
    assert "is not a path, as in /jobs" in call("serve", "--root-path", path, code=2).output


OWN = """
from stoker import InvalidInput, Stoker
from stoker.admin import Admin

async def refuse(*given, **options):
    raise InvalidInput("q", "", "is refused by an admin of the user's own")

admin = Admin(Stoker())
admin.jobs.find = refuse
"""


@pytest.mark.spec("WEBSEC-21", "ADMIN-24")
def test_it_asks_for_the_key_that_was_set_and_the_users_own_admin(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_admin.py").write_text(OWN, encoding="utf-8")
    monkeypatch.setenv("STOKER_DASHBOARD_KEY", "a-key-of-the-users-own")
    monkeypatch.setenv("STOKER_APP", "own_admin:admin")
    with serving() as (site, said):
        assert "?key=" not in said  # its log is no place for a lasting key
        assert _status(f"{site}/", {}) == 401
        holder = {"Authorization": "Bearer a-key-of-the-users-own"}
        assert _status(f"{site}/", holder) == 200
        assert _status(f"{site}/api/v1/jobs", holder) == 422


FIRST = """
from stoker import Stoker

jobs = Stoker({url!r}, durability="process")

@jobs.task
def resize(n: int) -> int:
    return n
"""


@pytest.mark.spec("WEB-44")
@pytest.mark.spec("WEB-80")
def test_it_makes_the_store_of_an_app_and_shows_how_to_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STOKER_URL", "STOKER_APP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    url, path = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "jobs.db"
    (tmp_path / "first_run_app.py").write_text(FIRST.format(url=url), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for words in (["--url", url], [url], ["first_run_app:jobs", "--read-only"]):
        refused = call("serve", *words, code=1).output
        assert "there is no store" in refused
        assert "`stoker migrate` makes a store" in refused
        assert not path.exists()
    command = [sys.executable, "-m", "stoker", "serve", "first_run_app:jobs", "--port", "0", "--auth", "open"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            assert server.stderr.readline() == f"there was no store at {path}: it is made, and empty\n"
            assert path.exists()
            found = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())
            assert found is not None
            _wait(f"{found[0]}/sign-in")
            page = urllib.request.urlopen(found[0], timeout=90).read().decode()
            assert "Nothing has been enqueued yet" in page
            assert "$ stoker work first_run_app:jobs\n&gt;&gt;&gt; resize.enqueue_sync(…)" in page
            assert "fills by itself" in page
            assert 'id="first-run" data-again=' in page
            packed = urllib.request.Request(found[0], headers={"Accept-Encoding": "gzip"})
            with urllib.request.urlopen(packed, timeout=90) as answer:
                assert answer.headers["content-encoding"] == "gzip"
                assert "Nothing has been enqueued yet" in gzip.decompress(answer.read()).decode()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(90)


@contextmanager
def serving(*command: str) -> Iterator[tuple[str, str]]:
    """A server in a process of its own; yields its address without a key, and what it said when it was ready."""
    begin = command or (sys.executable, "-m", "stoker")
    with subprocess.Popen([*begin, "serve", "--port", "0"], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        said = server.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert found is not None, said + server.stderr.read()
        try:
            _wait(f"{found[0]}/sign-in")
            yield found[0], said
        finally:
            server.send_signal(signal.SIGTERM)
            rest = server.stderr.read()
            server.wait(90)
    assert "TLS" not in said + rest
    assert server.returncode in {0, -signal.SIGTERM}


@pytest.mark.spec("WEBSEC-18")
@pytest.mark.spec("WEB-40")
def test_it_warns_where_others_reach_it_without_tls(url: str) -> None:
    """The address is one that no machine has, so nothing is served."""
    before = gc.get_freeze_count()  # Python 3.12 begins with a few hundred of its own
    told = call("serve", "--host", "192.0.2.1", "--allow-host", "stoker.example", code=1).output
    assert "warning: it is served without TLS" in told
    assert gc.get_freeze_count() > before + 10_000
    gc.unfreeze()
    cached = view.environment().cache
    assert cached is not None
    assert len(cached) == len(view.environment().list_templates()) > 20


@contextmanager
def frozen_no_more() -> Iterator[None]:
    """Give back to the collector what `serve` took from it in this process."""
    try:
        yield
    finally:
        gc.unfreeze()


@pytest.mark.spec("CLI-56")
def test_a_port_that_is_taken_is_named(url: str) -> None:
    with socket.socket() as taken, frozen_no_more():
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for command in ("serve", "metrics"):
            done = call(command, "--port", port, code=1)
            assert f"127.0.0.1 port {port} cannot be used: another program uses it." in done.output
            assert "is at" not in done.output
    assert "it is no address of this machine" in call("metrics", "--port", "0", "--host", "192.0.2.1", code=1).output


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The command `stoker` of an environment that has the wheel, and what it depends on, but not this repository."""
    built, home = tmp_path / "built", tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", built], cwd=ROOT, check=True)
    [wheel] = built.glob("stoker-*.whl")
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    into = ["--no-deps", "--no-index", "--no-compile", "--quiet", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", *into], check=True)
    [packages] = home.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return home / "bin" / "stoker"


@pytest.mark.spec("WEBSEC-15")
@pytest.mark.timeout(180)
def test_an_installed_wheel_serves_this_machine_and_ends_on_a_signal(url: str, installed: Path) -> None:
    where = [str(installed.with_name("python")), "-c", "import stoker; print(stoker.__file__)"]
    assert subprocess.check_output(where, text=True).startswith(str(installed.parents[1]))
    open_to_all = [str(installed), "serve", "--host", "0.0.0.0", "--auth", "open"]
    refused = subprocess.run(open_to_all, check=False, capture_output=True)
    assert (refused.returncode, b"lets everybody in" in refused.stderr) == (2, True)
    with serving(str(installed)) as (site, said):
        [key] = re.findall(r"\?key=([\w-]{43,})", said)
        assert f"{site}/?key={key} for every holder of its key" in said
        assert _status(f"{site}/", {}) == 401
        assert _status(f"{site}/api/v1/jobs", {}) == 401
        holder = {"Authorization": f"Bearer {key}"}
        page = _wait(f"{site}/", holder)
        assert "One thing needs you" in page
        assets = set(re.findall(r'(?:href|src)="(/static/[^"]+)"', page))
        assert {one.rpartition("/")[2] for one in assets} >= FILES
        for asset in assets:
            assert _status(site + asset, {}) == 200, asset
        assert '"openapi":"3.1.0"' in _wait(f"{site}/api/v1/openapi.json", holder).replace(" ", "")
        assert _status(f"{site}/", {"Host": "evil.example", **holder}) == 421


def _wait(address: str, headers: dict[str, str] | None = None) -> str:
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(address, headers=headers or {})) as answer:
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
    made = call("tokens", "create", "ci", "--role", "operate", "--queue", "mail", "--expires", "90d", "--create")
    secret = made.stdout.strip()
    assert secret.startswith("stk_")
    [listed] = [json.loads(line) for line in call("tokens", "list", "--json").stdout.splitlines()]
    assert (listed["name"], listed["role"], listed["queues"], listed["revoked"]) == ("ci", "operate", ["mail"], None)
    assert secret not in call("tokens", "list").stdout
    call("tokens", "revoke", "ci")
    assert "revoked" in call("tokens", "list").stdout
    call("tokens", "create", "brief", "--expires", "1ms")
    call("tokens", "create", "lasting")
    states = {
        one["name"]: one["state"] for one in map(json.loads, call("tokens", "list", "--json").stdout.splitlines())
    }
    assert states == {"ci": "revoked", "brief": "expired", "lasting": "valid"}
    assert "expired" in call("tokens", "list").stdout
    call("tokens", "revoke", "nobody", code=3)
    call("tokens", "create", "ci", code=2)
    call("tokens", "create", "x", "--expires", "soon", code=2)
    assert "would never be good" in call("tokens", "create", "x", "--expires", "0s", code=2).output

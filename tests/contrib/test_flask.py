"""Flask: the URL from its configuration, sync forms in views, `flask stoker`, and the dashboard as a blueprint."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flask
import pytest
import sqlalchemy as sa
from flask import Flask
from sqlalchemy import orm
from sqlalchemy.pool import NullPool
from werkzeug.test import TestResponse

from stoker import Stoker
from stoker.contrib.flask import FlaskStoker, dashboard
from stoker.model.errors import InvalidInput, InvalidOption, StokerError
from stoker.testing import TestKit
from stoker.web import Identity, Limits
from tests.worker.shell import ROOT


def site(url: str, jobs: FlaskStoker) -> Flask:
    app = Flask("shop")
    app.config.from_mapping(STOKER_URL=url, SECRET_KEY="s" * 32, SHOP="corner", TESTING=True)
    jobs.init_app(app)
    return app


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def jobs() -> Iterator[FlaskStoker]:
    found = FlaskStoker(durability="process")
    yield found
    found.run(found.close())


# --- configuration ------------------------------------------------------------------------------------------------


@pytest.mark.spec("FLASK-01")
def test_the_store_is_the_one_that_the_configuration_names(url: str, jobs: FlaskStoker, tmp_path: Path) -> None:
    """Also one file alone; `init_app` for another Flask app moves to its store, unless this one is in use."""
    work = jobs.task(name="work")(lambda: None)
    with pytest.raises(StokerError, match=r"does not know its store yet.*Call jobs\.init_app\(app\)"):
        work.enqueue_sync()
    app = site(url, jobs)
    assert app.extensions["stoker"] is jobs
    assert jobs.root().where == f"{tmp_path}/shop.db"
    site(f"sqlite:///{tmp_path}/second.db", jobs)
    work.enqueue_sync()
    assert (tmp_path / "second.db").exists()
    site(f"sqlite:///{tmp_path}/second.db", jobs)
    with pytest.raises(StokerError, match=r"the store at .*second\.db is in use"):
        site(url, jobs)
    jobs.run(jobs.close())
    site(url, jobs)
    alone = Flask("alone")
    alone.config["STOKER_URL"] = "memory://"
    assert FlaskStoker(alone, attempts=2).root().name == "memory"


@pytest.mark.spec("FLASK-01")
def test_what_it_cannot_use_is_refused(jobs: FlaskStoker, url: str) -> None:
    with pytest.raises(InvalidInput, match=r'url: is app\.config\["STOKER_URL"\] in Flask'):
        FlaskStoker(url=url)
    with pytest.raises(InvalidInput, match=r"app: must be your app, app = Flask\(__name__\)"):
        jobs.init_app("shop")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="attemps"):
        FlaskStoker(attemps=2).init_app(Flask("shop"))
    with pytest.raises(InvalidInput, match="nowhere"):
        site("nowhere://", jobs)
    app = site(url, jobs)
    with pytest.raises(InvalidInput, match="has another Stoker already; an app has one"):
        FlaskStoker(app)
    with pytest.raises(InvalidInput, match=r"jobs: must be your app, jobs = FlaskStoker\(\)"):
        dashboard(Stoker("memory://"))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="color"):
        dashboard(jobs, color="pink")


# --- views and handlers -------------------------------------------------------------------------------------------


@pytest.mark.spec("FLASK-02")
def test_views_use_the_sync_forms_and_handlers_run_in_the_apps_context(url: str, jobs: FlaskStoker) -> None:
    """A plain handler in its own thread, where also what the context opened is torn down; an async one on the loop."""
    torn: list[str] = []

    @jobs.task
    def plain() -> str:
        return f"{flask.current_app.config['SHOP']} in {threading.current_thread().name}"

    @jobs.task
    async def awaited() -> str:
        return str(flask.current_app.config["SHOP"])

    app = site(url, jobs)
    app.teardown_appcontext(lambda _: torn.append(threading.current_thread().name))

    @app.post("/")
    def enqueue() -> list[str]:
        return [plain.enqueue_sync().id, awaited.enqueue_sync().id]

    with TestKit(jobs) as kit:
        first, second = app.test_client().post("/").get_json()
        torn.clear()
        kit.drain_sync()
        where = str(jobs.handle(first).result_sync())
        assert where.startswith("corner in ")
        assert jobs.handle(second).result_sync() == "corner"
        assert where.removeprefix("corner in ") in torn
        assert len(torn) == 2


@pytest.mark.spec("FLASK-03")
@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_the_first_request_may_join_a_session(url: str, jobs: FlaskStoker, how: str) -> None:
    """The tables are there: a process opens its store before its first request."""
    work = jobs.task(name="work")(lambda: None)
    engine = sa.create_engine(url, poolclass=NullPool)
    sessions = orm.scoped_session(orm.sessionmaker(engine))
    app = site(url, jobs)

    @app.post("/")
    def enqueue() -> str:
        with jobs.joining(sessions):
            job = work.enqueue_sync()
        getattr(sessions, how)()
        sessions.remove()
        return job.id

    assert app.test_client().post("/").status_code == 200
    census = jobs.run(jobs.run(jobs.engine()).operator.census()).by_status()
    assert sum(census.values()) == (how == "commit")
    engine.dispose()


@pytest.mark.spec("FLASK-03")
def test_a_store_that_is_away_does_not_keep_pages_from_opening(
    jobs: FlaskStoker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = site(f"sqlite:///{tmp_path}/no/such/folder/shop.db", jobs)
    app.get("/")(lambda: "hello")
    client = app.test_client()
    assert [client.get("/").text for _ in range(2)] == ["hello", "hello"]
    [said] = [one.message for one in caplog.records if one.name == "stoker.flask"]
    assert said.startswith("the store of jobs could not be opened: ")


# --- the command line ---------------------------------------------------------------------------------------------


@pytest.mark.spec("FLASK-04")
def test_flask_has_the_commands_of_stoker(url: str, jobs: FlaskStoker) -> None:
    work = jobs.task(name="work")(lambda: None)
    app = site(url, jobs)
    work.enqueue_sync()
    run = app.test_cli_runner().invoke
    shown = run(args=["stoker", "jobs", "list"])
    assert (shown.exit_code, shown.output.count("\tpending\tdefault\twork\t")) == (0, 1), shown.output
    assert "Serve the dashboard" in run(args=["stoker", "--help"]).output
    assert "Usage: flask stoker jobs" in run(args=["stoker", "jobs", "--help"]).output.replace("shop", "flask")
    assert run(args=["stoker", "workers"]).exit_code == 0
    assert "`stoker workers` lists those" in run(args=["stoker", "workers", "stack", "nobody"]).output
    twice = run(args=["stoker", "status", "other:jobs"])
    assert (twice.exit_code, "name the store twice" in twice.output) == (2, True)


@pytest.mark.spec("FLASK-04")
def test_flask_stoker_work_starts_processes_that_find_the_app(tmp_path: Path) -> None:
    """By a factory, which `--app` names to `flask` alone, and with a handler in a process of its own."""
    jobs = Stoker(f"sqlite:///{tmp_path}/shop.db")
    for kind in ("pack", "weigh"):
        jobs.declare(kind)
    handles = [jobs.enqueue_sync(jobs.draft(kind, {"order": 7})) for kind in ("pack", "weigh")]
    environ = {**os.environ, "SHOP": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environ.pop("FLASK_APP", None)
    command = [sys.executable, "-m", "flask", "--app", "tests.contrib.apps.flask_shop:create_app"]
    subprocess.run([*command, "stoker", "work", "--drain"], env=environ, cwd=ROOT, timeout=240, check=True)
    assert [one.result_sync() for one in handles] == ["corner packs 7", "corner weighs 7"]
    jobs.run(jobs.close())


# --- the dashboard ------------------------------------------------------------------------------------------------


def who() -> Identity | None:
    name = flask.session.get("user")
    return Identity(name, role="operate") if name else None


@pytest.fixture
def board(url: str, jobs: FlaskStoker) -> Flask:
    jobs.declare("send")
    app = site(url, jobs)
    shown = dashboard(jobs, auth=who, login_url="/login", limits=Limits(seconds=30, body=5_000))
    app.register_blueprint(shown, url_prefix="/jobs")

    @app.post("/login")
    def login() -> str:
        flask.session["user"] = "ann"
        return "in"

    return app


def ask(client: Any, method: str, path: str, **options: Any) -> TestResponse:
    headers = {"accept": "text/html", **options.pop("headers", {})}
    answer: TestResponse = client.open(path, method=method, headers=headers, **options)
    return answer


@pytest.mark.spec("FLASK-05")
def test_the_dashboard_is_a_blueprint_that_asks_flasks_own_session(board: Flask, jobs: FlaskStoker) -> None:
    client = board.test_client()
    away = ask(client, "GET", "/jobs/queues?x=1")
    assert (away.status_code, away.headers["location"]) == (303, "/login?next=%2Fjobs%2Fqueues%3Fx%3D1")
    client.post("/login")
    id_ = jobs.enqueue_sync(jobs.draft("send")).id
    page = ask(client, "GET", "/jobs/jobs")
    assert page.status_code == 200
    assert f'href="/jobs/jobs/{id_}"' in page.text
    css = re.search(r'href="(/jobs/static/[^"]+\.css)"', page.text)
    assert css is not None
    assert client.get(css[1]).content_type.startswith("text/css")
    token = re.search(r'name="csrf" value="([^"]+)"', page.text)
    assert token is not None
    done = ask(client, "POST", f"/jobs/jobs/{id_}/cancel", data={"csrf": token[1]})
    assert (done.status_code, done.headers["location"]) == (303, f"/jobs/jobs/{id_}")
    assert jobs.handle(id_).refresh_sync().status == "canceled"
    assert client.get("/jobs/api/v1/overview").json is not None
    assert client.head("/jobs/jobs").status_code == 200
    assert ask(client, "GET", "/jobs").headers["location"].endswith("/jobs/")


@pytest.mark.spec("FLASK-05")
def test_it_keeps_no_thread_busy_and_reads_no_more_than_it_may(board: Flask) -> None:
    """Live pages are refused their stream, and ask from time to time instead; a large body is not read to its end."""
    client = board.test_client()
    client.post("/login")
    assert client.get("/jobs/live?page=overview").status_code == 429
    assert client.get("/jobs/pieces?page=overview").status_code == 200
    body = io.BytesIO(b"x" * 20_000)
    large = client.post("/jobs/api/v1/jobs", input_stream=body, content_length=20_000, content_type="application/json")
    assert (large.status_code, body.tell()) == (413, 5_001)


@pytest.mark.spec("FLASK-05")
def test_below_another_path_and_inside_a_kit_it_shows_what_is_there(board: Flask, jobs: FlaskStoker) -> None:
    """The links begin with the path of the server around; the store is the one that the app has now."""
    client = board.test_client()
    client.post("/login")
    with TestKit(jobs):
        id_ = jobs.enqueue_sync(jobs.draft("send")).id
        page = ask(client, "GET", "/jobs/jobs", environ_overrides={"SCRIPT_NAME": "/shop"})
        assert f'href="/shop/jobs/jobs/{id_}"' in page.text
        jobs.run(jobs.close())
    assert id_ not in ask(client, "GET", "/jobs/jobs").text

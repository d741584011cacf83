"""`stoker export` and `stoker import`, from one engine to another."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.cli.command import stoker
from stoker.context import current
from stoker.engines.sealed.seal import Seal
from stoker.model.job import Demand
from stoker.model.retry import Fixed
from stoker.model.unique import Unique
from tests.harness.apps import drain


@pytest.fixture
def many(campaign: bool) -> int:
    """So many jobs of one kind are in the store beside a few others."""
    return 100_000 if campaign else 120


async def charge(n: int) -> dict[str, int]:
    return {"id": n}


def run(*arguments: str, **given: Any) -> Result:
    return CliRunner().invoke(stoker, list(arguments), **given)


@pytest.fixture
def url(tmp_path: Path, many: int) -> str:
    """A store with jobs of every kind that there is."""
    url = f"sqlite:///{tmp_path / 'from.db'}"
    app = Stoker(url, backoff=Fixed(3600))

    @app.task(queue="mail", attempts=2)
    async def send(n: int) -> dict[str, Any]:
        if n % 5 == 0:
            raise ValueError(f"no such address: {n}\nat é")
        return {"n": n, "text": "ü\n"}

    @app.task
    async def pay(n: int) -> None:
        await current().step("charge", charge, n)
        current().emit({"token": "one"})
        raise ValueError("declined")

    async def fill() -> None:
        async with app:
            for start in range(0, many, 1_000):
                await app.enqueue_many([send.draft(n) for n in range(start, min(start + 1_000, many))])
                if start % 10_000 == 9_000:
                    await drain(app)
            await pay.enqueue(7)
            await drain(app)
            await send.using(delay=3600, priority=7, tenant="acme", metadata={"a": "b"}).enqueue(1)
            await send.using(unique=Unique("img:7")).enqueue(2)
            await app.group([send.draft(3)])

    app.run(fill())
    return url


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.engine(name)) for name in ("sqlite", "postgres", "redis")])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of some engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'to.db'}"
    if request.param == "postgres":
        base, schema = request.getfixturevalue("postgres_url"), request.getfixturevalue("postgres_schema")
        return f"{base}{'&' if '?' in base else '?'}schema={schema}"
    base, prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix")
    return f"{base}{'&' if '?' in base else '?'}prefix={prefix}"


@pytest.mark.timeout(1_800)  # with --campaign, on a busy machine
@pytest.mark.spec("EXPORT-01", "EXPORT-02")
def test_an_export_comes_back_equal_on_another_engine(url: str, other: str, tmp_path: Path, many: int) -> None:
    file, again = tmp_path / "jobs.jsonl", tmp_path / "again.jsonl"
    exported = run("export", "--url", url, "-o", str(file))
    assert exported.exit_code == 0, exported.output
    lines = file.read_text().splitlines()
    assert len(lines) == many + 4
    assert run("migrate", "--url", other).exit_code == 0
    imported = run("import", str(file), "--url", other)
    assert imported.exit_code == 0, imported.output
    assert imported.stdout == f"stored {many + 4:,} jobs; 1 came without their group\n"
    assert run("export", "--url", other, "-o", str(again)).exit_code == 0
    was, now = ([json.loads(line) for line in path.read_text().splitlines()] for path in (file, again))
    for line in was:
        line.get("options", {}).pop("group", None)
    assert [{k: v for k, v in one.items() if v != {}} for one in now] == [
        {k: v for k, v in one.items() if v != {}} for one in was
    ]
    assert run("import", str(file), "--url", other).stdout == f"stored 0 jobs; {many + 4:,} were there already\n"


@pytest.mark.spec("EXPORT-01")
def test_an_export_has_a_filter_and_is_only_for_its_owner(url: str, tmp_path: Path, many: int) -> None:
    """In a pipe it is nothing but lines."""
    out = run("export", "--url", url, "is:retrying", "kind:send")
    found = [json.loads(line) for line in out.stdout.splitlines()]
    assert {(one["status"], one["kind"]) for one in found} == {("retrying", "send")}
    assert len(found) == many // 5
    assert "\n" in found[0]["history"][0]["error"]
    assert out.stderr == f"exported {many // 5:,} jobs\n"
    [paid] = [json.loads(line) for line in run("export", "--url", url, "kind:pay").stdout.splitlines()]
    [page, step] = sorted(paid["steps"], key=lambda one: one["name"])
    assert (step["name"], step["value"]) == ("charge", {"id": 7})
    assert page["value"][-1][0][-1] == {"token": "one"}
    file = tmp_path / "jobs.jsonl"
    run("export", "--url", url, "-o", str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    whole = file.read_bytes()
    refused = run("export", "--url", url, "kind:pay", "-o", str(file))
    assert (refused.exit_code, file.read_bytes()) == (1, whole)
    assert "--force overwrites it" in refused.output
    assert run("export", "--url", url, "kind:pay", "-o", str(file), "--force").exit_code == 0
    assert len(file.read_bytes().splitlines()) == 1
    assert run("export", "--url", url, "-o", str(tmp_path / "none" / "x")).exit_code == 1
    assert run("export", "--url", url, "kind:sned").exit_code == 2


@pytest.mark.spec("EXPORT-03")
def test_a_key_that_is_taken_is_told_and_a_bad_line_ends_the_import(url: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    run("export", "--url", url, "key:img:7", "-o", str(file))
    other = f"sqlite:///{tmp_path / 'to.db'}"
    app = Stoker(other)
    app.declare("send")
    app.run(_close_after(app, app.enqueue(app.draft("send", queue="mail", unique=Unique("img:7")))))
    found = run("import", str(file), "--url", other)
    job = json.loads(file.read_text())["id"]
    assert (found.exit_code, found.stdout) == (
        4,
        f"stored 0 jobs; 1 left out: unique key held by another job: {job}\n",
    )
    line = file.read_bytes()
    for wrong in (b"{}", b"no json", line.replace(b'"stoker":1', b'"stoker":99'), line.replace(b"pending", b"running")):
        refused = run("import", "-", "--url", other, input=b"\n" + wrong)
        assert refused.exit_code == 2, refused.output
        assert "line 2: is no job that stoker export wrote" in refused.stderr
        assert "Jobs of earlier lines may be stored." in refused.stderr and "Nothing was" not in refused.stderr
    assert run("import", "-", "--url", other, "--json", input=b"").stdout.startswith('{"stored": 0')


async def _close_after(app: Stoker, call: Any) -> None:
    async with app:
        await call


@pytest.mark.spec("EXPORT-01")
def test_running_jobs_are_written_as_pending(tmp_path: Path) -> None:
    """And what only their worker has is not in the line."""
    app = Stoker(f"sqlite:///{tmp_path / 'jobs.db'}")
    app.declare("send")

    async def lines() -> list[bytes]:
        async with app:
            await app.enqueue(app.draft("send"))
            engine = await app.engine()
            await engine.jobs.renew("w", [], first=True)
            await engine.jobs.claim(Demand("w", (("default", 1),), 1))
            return [line async for page in Admin(app).jobs.export() for line in page]

    [line] = map(json.loads, app.run(lines()))
    assert line["status"] == "pending"
    assert "attempts" not in line
    assert "w" not in line.values()


@pytest.mark.spec("EXPORT-04")
def test_an_export_without_the_key_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, path = f"sqlite:///{tmp_path / 'sealed.db'}", str(tmp_path / "jobs.jsonl")

    async def fill() -> None:
        for key in ("old", "new", "new"):
            async with Stoker(url, seal=Seal(keys={key: key.encode().ljust(32)})) as app:
                await app.task(name="pay")(charge).enqueue(7)

    asyncio.run(fill())
    module = f"from stoker import Seal, Stoker\njobs = Stoker({url!r}, seal=Seal(keys={{'old': b'old'.ljust(32)}}))\n"
    (tmp_path / "old_only.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = run("export", "-A", "old_only:jobs", "-o", path)
    assert found.exit_code == 4
    assert "exported 3 jobs" in found.stderr
    assert "2 of them came without values that this app has no key for" in found.stderr
    assert next(json.loads(line)["payload"] for line in Path(path).read_text().splitlines()) == {"n": 7}


@pytest.mark.spec("EXPORT-05")
def test_an_export_by_the_url_alone_stays_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a backup that needs the keys: an app that has them imports it, with chains and copies."""
    url, path = f"sqlite:///{tmp_path / 'sealed.db'}", str(tmp_path / "jobs.jsonl")
    there, seal = f"sqlite:///{tmp_path / 'there.db'}", Seal(keys={"now": bytes(32)})

    async def fill() -> tuple[list[str], list[Any]]:
        async with Stoker(url, seal=seal) as app:
            app.task(name="pay")(charge)
            chained = app.draft("pay", [47114711]).then(app.draft("pay", [47114712]))
            noted = app.draft("pay", [47114713], metadata={"card": "47114714"}, label="47114715")
            made = [(await app.enqueue(draft)).id for draft in (chained, noted)]
            await drain(app)
            made += (await Admin(app).jobs.fork(made[1])).created
            return made, await shown(app, made)

    async def shown(app: Stoker, jobs: list[str]) -> list[Any]:
        found = [(await Admin(app).jobs.get(job)).job for job in jobs]
        return [(one.status, one.payload, one.metadata, one.result, one.label) for one in found]

    async def arrived() -> list[Any]:
        async with Stoker(there, seal=seal) as app:
            return await shown(app, jobs)

    jobs, before = asyncio.run(fill())
    assert run("export", "--url", url, "-o", path).exit_code == 0
    assert "471147" not in Path(path).read_text()
    module = f"from stoker import Seal, Stoker\njobs = Stoker({there!r}, seal=Seal(keys={{'now': bytes(32)}}))\n"
    (tmp_path / "there_app.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = run("import", "-A", "there_app:jobs", path)
    assert found.exit_code == 0, found.output
    assert asyncio.run(arrived()) == before
    assert b"471147" not in (tmp_path / "there.db").read_bytes()

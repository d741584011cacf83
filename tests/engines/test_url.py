from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from stoker.engines.memory import MemoryEngine
from stoker.engines.url import engine_from_url
from stoker.model.errors import EngineRefused, InvalidInput, InvalidOption, StokerError


class Fake:
    """An engine that remembers what it was made with."""

    def __init__(self, where: str, *, timeout: float = 5.0, fast: bool = False, size: int | None = None) -> None:
        self.where = where
        self.options = (timeout, fast, size)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = {
        "sqlite": ["SqliteEngine"],
        "postgres": ["PostgresEngine"],
        "redis": ["RedisEngine", "RedisClusterEngine"],
    }
    for module, names in classes.items():
        fake = types.ModuleType(f"stoker.engines.{module}")
        for name in names:
            setattr(fake, name, Fake)
        monkeypatch.setitem(sys.modules, fake.__name__, fake)


def made(url: str, **options: Any) -> Any:
    return engine_from_url(url, **options)


@pytest.mark.spec("URL-01")
def test_memory_needs_no_more_than_its_scheme() -> None:
    assert isinstance(engine_from_url("memory://"), MemoryEngine)
    assert isinstance(engine_from_url("MEMORY://"), MemoryEngine)
    with pytest.raises(InvalidInput, match="no name"):
        engine_from_url("memory://shared")


@pytest.mark.spec("URL-01")
@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///jobs.db", "jobs.db"),
        ("sqlite:///data/jobs.db", "data/jobs.db"),
        ("sqlite:////var/lib/jobs.db", "/var/lib/jobs.db"),
        ("sqlite:///with%20space.db", "with space.db"),
    ],
)
def test_sqlite_paths(fakes: None, url: str, path: str) -> None:
    assert made(url).where == path


@pytest.mark.spec("URL-01")
@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://jobs.db", "sqlite:///:memory:"])
def test_sqlite_needs_a_file(fakes: None, url: str) -> None:
    with pytest.raises(InvalidInput, match=r"sqlite:///relative\.db|use memory://"):
        engine_from_url(url)


@pytest.mark.spec("URL-01")
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@h/db?sslmode=require",
        "postgres://u:p@h/db",
        "postgresql+asyncpg://u:p@h/db",
        "redis://h:6379/0",
        "rediss://h",
        "redis+cluster://h:7000",
    ],
)
def test_servers_get_the_url_as_it_is(fakes: None, url: str) -> None:
    assert made(url).where == url


@pytest.mark.spec("URL-02")
@pytest.mark.parametrize(
    "url", ["mysql://root:hunter2@h", "postgres", "", "//u:hunter2@h", "u:hunter2@h/db", "mysql+hunter2!://x"]
)
def test_an_unknown_scheme_is_refused_and_the_known_ones_are_named(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        engine_from_url(url)
    for known in ("memory://", "sqlite:///", "postgresql://", "redis://", "redis+cluster://"):
        assert known in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.spec("URL-03")
@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("postgresql://u:hunter2@h/db", "stoker.engines.postgres", "postgres"),
        ("redis://u:hunter2@h/0", "stoker.engines.redis", "redis"),
    ],
)
def test_an_engine_that_is_not_installed_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, url: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EngineRefused, match=rf"stoker\[{extra}\]") as refused:
        engine_from_url(url)
    assert "hunter2" not in str(refused.value)
    monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    with pytest.raises(EngineRefused, match=rf"stoker\[{extra}\]"):
        engine_from_url(url)


@pytest.mark.spec("URL-04")
@pytest.mark.parametrize(
    "url", ["postgresql://u:hunter2@[h/db", "redis://u:hunter2@[::1", "sqlite://u:hunter2@h/jobs.db"]
)
def test_no_error_shows_a_password(fakes: None, url: str) -> None:
    with pytest.raises(StokerError) as refused:
        engine_from_url(url)
    seen: BaseException | None = refused.value
    while seen is not None:
        assert "hunter2" not in str(seen)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


@pytest.mark.spec("URL-05")
async def test_options_come_from_the_query_and_keywords_win() -> None:
    engine = engine_from_url("memory://?capacity=5&when_full=wait&history=7", capacity=9)
    await engine.open()
    assert (await engine.describe()).facts["capacity"] == "9, then wait"
    await engine.close()


@pytest.mark.spec("URL-05")
def test_values_of_the_query_are_read_as_the_engine_wants_them(fakes: None) -> None:
    assert made("sqlite:///jobs.db?timeout=1.5&fast=true&size=3").options == (1.5, True, 3)
    assert made("postgresql://h/db?sslmode=require", size=4).options == (5.0, False, 4)


@pytest.mark.spec("URL-05")
def test_what_neither_keyword_nor_query_gives_comes_from_the_environment(
    fakes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"TIMEOUT": "2.5", "FAST": "true", "SIZE": "3", "CLOCK": "now", "SPEED": "9"}.items():
        monkeypatch.setenv(f"STOKER_{name}", text)
    assert made("sqlite:///jobs.db").options == (2.5, True, 3)
    assert made("sqlite:///jobs.db?timeout=1&fast=false", size=4).options == (1.0, False, 4)
    assert made("postgresql://h/db?size=8").options == (2.5, True, None), "the engine reads its own query"
    monkeypatch.setenv("STOKER_FAST", "")
    assert made("redis://h").options == (2.5, False, 3), "set to nothing is not set"
    monkeypatch.setenv("STOKER_TIMEOUT", "soon")
    with pytest.raises(InvalidOption, match=r"the environment variable STOKER_TIMEOUT: must be float; got 'soon'"):
        made("sqlite:///jobs.db")
    assert made("sqlite:///jobs.db?timeout=1").options == (1.0, False, 3), "what is overridden is not looked at"


@pytest.mark.spec("URL-05")
@pytest.mark.parametrize(("name", "text"), [("capacity", "many"), ("when_full", "drop"), ("clock", "now")])
def test_a_value_that_cannot_be_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(InvalidOption, match=f"option {name}: .*{text}"):
        engine_from_url(f"memory://?{name}={text}")


@pytest.mark.spec("URL-05")
def test_an_unknown_option_is_refused_and_the_known_ones_are_named(fakes: None) -> None:
    for url, options in (("memory://?capcity=3", {}), ("memory://", {"capcity": 3})):
        with pytest.raises(InvalidOption, match="capacity, clock, history, when_full"):
            engine_from_url(url, **options)
    with pytest.raises(InvalidOption, match="fast, size, timeout"):
        engine_from_url("redis://h", speed=1)


@pytest.mark.spec("EXPIRE-13")
@pytest.mark.parametrize(
    "url", ["memory://", "sqlite:///jobs.db", "postgresql://h/db", "redis://h", "redis+cluster://h"]
)
def test_a_history_can_be_given_in_every_way(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By keyword, in the URL and in the environment, in this order; twins have it too."""
    assert engine_from_url(url).history == (1_000 if url == "memory://" else None)
    monkeypatch.setenv("STOKER_HISTORY", "7")
    assert engine_from_url(url).history == 7
    assert engine_from_url(f"{url}?history=8").history == 8
    assert engine_from_url(f"{url}?history=8", history=9).for_loop().history == 9
    with pytest.raises(InvalidOption, match="history"):
        engine_from_url(f"{url}?history=0")

"""What an engine says about the way to its server, read from real connections."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from stoker.engines.postgres import PostgresEngine
from stoker.engines.redis import RedisEngine

SSL_REQUEST = bytes.fromhex("0000000804d2162f")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that signed itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "cert.pem", folder / "key.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {made}"
    subprocess.run([*command.split(), "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    return made, key


@pytest.fixture
async def tls_port(postgres_url: str, certificate: tuple[Path, Path]) -> AsyncIterator[int]:
    """A server that speaks TLS with Postgres clients and passes everything on to the real one."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    parts = urlsplit(postgres_url)
    ends: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # one side has gone
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(8) != SSL_REQUEST:
            writer.close()
            return
        writer.write(b"S")
        await writer.start_tls(context)
        inner, outer = await asyncio.open_connection(parts.hostname, parts.port)
        ends.update({asyncio.ensure_future(copy(reader, outer)), asyncio.ensure_future(copy(inner, writer))})

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for end in ends:
        end.cancel()
    await asyncio.gather(*ends, return_exceptions=True)


async def protection(engine: PostgresEngine | RedisEngine) -> tuple[str, bool, bool]:
    await engine.open()
    try:
        way = (await engine.diagnose()).transport
    finally:
        await engine.close()
    assert way is not None
    return way.host, way.encrypted, way.verified


@pytest.mark.spec("HEALTH-09")
@pytest.mark.engine("postgres")
async def test_postgres_says_whether_tls_is_used_and_checked(
    postgres_url: str, postgres_schema: str, tls_port: int, certificate: tuple[Path, Path]
) -> None:
    assert await protection(PostgresEngine(postgres_url, schema=postgres_schema)) == ("127.0.0.1", False, False)
    parts = urlsplit(postgres_url)
    user = parts.netloc.rpartition("@")[0]
    url = f"postgresql://{f'{user}@' if user else ''}localhost:{tls_port}{parts.path}"
    loose = PostgresEngine(f"{url}?sslmode=require", schema=postgres_schema)
    assert (await protection(loose))[1:] == (True, False)
    strict = PostgresEngine(f"{url}?sslmode=verify-full&sslrootcert={certificate[0]}", schema=postgres_schema)
    assert (await protection(strict))[1:] == (True, True)


@pytest.mark.spec("HEALTH-09")
@pytest.mark.engine("redis")
async def test_redis_says_whether_tls_is_used_and_checked(redis_url: str, redis_prefix: str) -> None:
    assert await protection(RedisEngine(redis_url, prefix=redis_prefix)) == ("127.0.0.1", False, False)
    cases = {
        "rediss://db.internal:6380": ("db.internal", True, True),
        "rediss://db.internal?ssl_cert_reqs=none": ("db.internal", True, False),
        "rediss://db.internal?ssl_check_hostname=false": ("db.internal", True, False),
        "redis://db.internal": ("db.internal", False, False),
        "redis+cluster://db.internal": ("db.internal", False, False),
        "unix:///run/redis.sock": ("", False, False),
    }
    for url, expected in cases.items():
        way = RedisEngine(url)._store.connection.transport()
        assert (way.host, way.encrypted, way.verified) == expected, url

"""A small HTTP server that a webhook is posted to: it keeps requests and answers as told."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias


class Request(NamedTuple):
    line: str
    headers: dict[str, str]
    body: bytes


Answer: TypeAlias = Callable[[Request], bytes]

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def status(code: int, *headers: str, body: bytes = b"no") -> bytes:
    """An answer with this status."""
    lines = [f"HTTP/1.1 {code} Some", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Receiver:
    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answer: Answer = lambda _: OK
        self.connections = 0
        self.cut = 0
        self.names: list[str | None] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                fields = dict(line.split(": ", 1) for line in head[1:] if line)
                headers = {name.lower(): value for name, value in fields.items()}
                request = Request(head[0], headers, await reader.readexactly(int(headers["content-length"])))
                self.requests.append(request)
                answer = self.answer(request)
                if not answer:
                    await asyncio.sleep(60)
                writer.write(answer)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass  # the client left between two requests
        except ConnectionError:
            self.cut += 1
        finally:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def listening(tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[Receiver]:
    """A receiver on a port of the loopback interface."""
    receiver = Receiver()
    if tls is not None:
        tls.sni_callback = lambda _, name, __: receiver.names.append(name)
    handlers: set[asyncio.Task[None]] = set()

    def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(receiver.serve(reader, writer))
        handlers.add(task)
        task.add_done_callback(handlers.discard)

    server = await asyncio.start_server(greet, "127.0.0.1", port, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in handlers:
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of a server with a certificate for a name, and of a client that trusts it."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    subprocess.run([*made, *subject, "-keyout", key, "-out", cert], check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    return server, ssl.create_default_context(cafile=str(cert))

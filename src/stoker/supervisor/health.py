"""Readiness for service managers: a file that exists only while ready, and an HTTP endpoint."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.model.errors import InvalidOption

logger = logging.getLogger("stoker.supervisor")

REFRESH_EVERY = 2.0


class Health:
    """The file and the endpoint, where configured. `facts` holds `ready` and what else the endpoint shows."""

    def __init__(
        self, file: str | None, port: int | None, facts: Callable[[], dict[str, Any]], *, host: str = "127.0.0.1"
    ) -> None:
        self._facts = facts
        self._file = None if file is None else HealthFile(file)
        self._port = None if port is None else HealthPort(port, facts, host)

    async def open(self) -> None:
        """Open the endpoint."""
        if self._port is not None:
            logger.info("readiness is served at %s", await self._port.open())

    def show(self) -> None:
        """Update the file."""
        if self._file is not None:
            self._file.show(ready=self._facts()["ready"], now=time.monotonic())

    async def close(self) -> None:
        """Remove the file and close the endpoint."""
        if self._file is not None:
            self._file.show(ready=False, now=time.monotonic())
        if self._port is not None:
            await self._port.close()


class HealthFile:
    """Exists while ready. It is touched every few seconds, so its age shows whether it is stale."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._check()
        self._shown_at: float | None = None
        self._broken = False

    def _check(self) -> None:
        """Refuse a path where the file cannot be: its folder is missing or read-only, or something else is there."""
        folder = self._path.parent
        if "\0" in str(self._path) or not folder.is_dir():
            raise InvalidOption("the health file", str(self._path), f"its folder does not exist; create {folder}")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise InvalidOption("the health file", str(self._path), f"its folder {folder} cannot be written to")
        if os.path.lexists(self._path) and not (self._path.is_file() or self._path.is_symlink()):
            raise InvalidOption("the health file", str(self._path), "there is something else than a file")

    def show(self, *, ready: bool, now: float) -> None:
        """Create, touch or remove the file; a failure is logged once. Links in its place are not followed."""
        try:
            self._show(ready=ready, now=now)
            self._broken = False
        except OSError as error:
            if not self._broken:
                text = "the health file %s cannot be written: %s. Workers go on; who reads it may take them for dead."
                logger.error(text, self._path, error)  # noqa: TRY400 - a full disk needs no traceback
            self._broken = True

    def _show(self, *, ready: bool, now: float) -> None:
        if ready and (self._shown_at is None or now - self._shown_at > REFRESH_EVERY):
            scratch = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            scratch.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(scratch, flags, 0o644), "w", encoding="ascii") as file:
                file.write(f"{os.getpid()}\n")
            scratch.replace(self._path)
            self._shown_at = now
        elif not ready and (self._shown_at is not None or os.path.lexists(self._path)):
            self._path.unlink(missing_ok=True)
            self._shown_at = None


class HealthPort:
    """Answers every request with 200 while ready and 503 otherwise, and with the facts as JSON."""

    def __init__(self, port: int, facts: Callable[[], dict[str, Any]], host: str = "127.0.0.1") -> None:
        self._host = host
        self._port = port
        self._facts = facts
        self._server: asyncio.Server | None = None

    async def open(self) -> str:
        """Listen; returns the address with the port that was chosen for 0."""
        self._server = await asyncio.start_server(self._answer, self._host, self._port, limit=8192)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5.0):
                head = await reader.readuntil(b"\r\n\r\n")
                facts = self._facts()
                status = "200 OK" if facts["ready"] else "503 Service Unavailable"
                body = b"" if head.startswith(b"HEAD") else json.dumps(facts).encode() + b"\n"
                fields = "Content-Type: application/json\r\nCache-Control: no-store\r\nConnection: close"
                writer.write(f"HTTP/1.1 {status}\r\n{fields}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

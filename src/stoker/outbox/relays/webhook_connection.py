"""Connections to a webhook: the address that was checked is the address that is connected to.

Only this module of the relay imports its library, so it is imported when a webhook is opened.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import httpcore2

from stoker.model.outbox.webhook import Endpoint

LARGEST_ANSWER: Final = 64 << 10
RETRY: Final = b"retry-after"
SHOWN: Final = 200
"""Bytes of an answer that an error shows."""

Resolver: TypeAlias = Callable[[str, int], Awaitable[list[str]]]


class CheckedAddresses(httpcore2.AsyncNetworkBackend):
    """Resolves a name once, refuses it unless all its addresses are allowed, and connects to one of them.

    A name that is resolved a second time may stand for another address by then, which was not checked. TLS still
    goes by the name: it is what the certificate must be for.
    """

    def __init__(self, endpoint: Endpoint, resolve: Resolver | None = None) -> None:
        self._endpoint = endpoint
        self._resolve = resolve or system_addresses
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to an address of the host that is allowed."""
        address = self._endpoint.choose(await self._resolve(host, port))
        return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)


async def system_addresses(host: str, port: int) -> list[str]:
    """Every address of a name, as the system resolves it."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def pool(endpoint: Endpoint, tls: ssl.SSLContext, most: int) -> httpcore2.AsyncConnectionPool:
    """A bounded pool of connections to a webhook, each made when it is needed and kept."""
    return httpcore2.AsyncConnectionPool(tls, max_connections=most, network_backend=CheckedAddresses(endpoint))


async def post(
    connections: httpcore2.AsyncConnectionPool, endpoint: Endpoint, headers: Mapping[str, str], body: bytes
) -> tuple[int, str | None, str]:
    """Status, `Retry-After` and the beginning of the answer, of which no more than a limit is read."""
    given = [*headers.items(), ("host", endpoint.authority), ("content-length", str(len(body)))]
    text = b""
    async with connections.stream("POST", endpoint.url, headers=given, content=body) as response:
        async for part in response.aiter_stream():
            text += part
            if len(text) > LARGEST_ANSWER:
                break
        after = next((value.decode("latin-1") for name, value in response.headers if name.lower() == RETRY), None)
    return response.status, after, text[:SHOWN].decode(errors="replace")

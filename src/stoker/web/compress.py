"""Answers in fewer bytes: pages, JSON and static files for those who take gzip; streams and small answers never.

Of static files the compressed form is kept. In pages the token of forms is masked anew in each answer (`csrf`), and
requests of other sites are refused, so that the length of an answer tells nobody what is in it.
"""

from __future__ import annotations

import gzip
from functools import lru_cache
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

LEAST: Final = 1_000
"""Bytes below which an answer is sent as it is."""

TYPES: Final = frozenset(
    {
        "application/json",
        "application/problem+json",
        "image/svg+xml",
        "text/css",
        "text/html",
        "text/javascript",
        "text/plain",
    }
)
"""What becomes smaller; fonts are compressed already."""

QUICK, THOROUGH = 5, 9


def compress(request: Request, response: Response) -> None:
    """Make an answer smaller where its reader takes that."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip()
    if isinstance(response, StreamingResponse) or kind not in TYPES:
        return
    response.headers.add_vary_header("Accept-Encoding")
    body = bytes(response.body)
    if len(body) < LEAST or not takes_gzip(request.headers.get("accept-encoding", "")):
        return
    kept = "immutable" in response.headers.get("cache-control", "")
    response.body = _kept(body) if kept else gzip.compress(body, QUICK, mtime=0)
    response.headers["content-encoding"] = "gzip"
    response.headers["content-length"] = str(len(response.body))


@lru_cache(maxsize=64)
def _kept(body: bytes) -> bytes:
    return gzip.compress(body, THOROUGH, mtime=0)


def takes_gzip(header: str) -> bool:
    """Does the header `Accept-Encoding` allow gzip?"""
    weights: dict[str, float] = {}
    for part in header.lower().split(","):
        name, _, given = part.partition(";")
        try:
            weights[name.strip()] = float(given.strip().removeprefix("q=") or 1)
        except ValueError:
            weights[name.strip()] = 0
    return weights.get("gzip", weights.get("*", 0)) > 0

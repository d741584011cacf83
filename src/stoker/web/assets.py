"""Static files under an address that changes with their content, so that browsers may keep them for a year."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".LICENSE": "text/plain; charset=utf-8",
}


@cache
def files() -> dict[str, bytes]:
    """Every file by its path below the folder; nothing else is ever served."""
    return {
        path.relative_to(FOLDER).as_posix(): path.read_bytes()
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in TYPES
    }


@cache
def version() -> str:
    """A hash over all files: a stylesheet names its fonts relative to itself, so they share one."""
    found = hashlib.sha256()
    for name, content in files().items():
        found.update(f"{name}\0{len(content)}\0".encode())
        found.update(content)
    return found.hexdigest()[:16]


async def serve(request: Request) -> Response:
    """One file. An address of another version answers too, but is not kept."""
    name: str = request.path_params["name"]
    content = files().get(name)
    if content is None:
        return Response("There is no such file.\n", 404, media_type="text/plain")
    current = request.path_params["version"] == version()
    keep = "public, max-age=31536000, immutable" if current else "no-cache"
    return Response(content, headers={"cache-control": keep, "content-type": TYPES[Path(name).suffix]})

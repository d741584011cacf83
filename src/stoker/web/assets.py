"""Static files under an address that changes with their content, so that browsers may keep them for a year."""

from __future__ import annotations

import hashlib
import re
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
COMMENTS = {".css": re.compile(r"/\*.*?\*/", re.DOTALL), ".js": re.compile(r"^\s*//.*$", re.MULTILINE)}
"""In scripts only lines that are nothing else: what looks like a comment elsewhere may be part of a text."""

SIGNS = re.compile(r"""("[^"]*"|`[^`]*`|/[^/ ][^/\n]*/)|\s*([=,:;?{}()<>&|!]+)\s*""")
"""In scripts: texts and patterns, in which every space counts, and signs, around which none does."""

SPACES = re.compile(r'("[^"]*")|\s*([{};,>])\s*|(:) ')
"""In style sheets: those that mean nothing, and texts, in which they do."""


@cache
def files() -> dict[str, bytes]:
    """Every file by its path below the folder; nothing else is ever served."""
    return {
        path.relative_to(FOLDER).as_posix(): _slim(path) if path.parent == FOLDER else path.read_bytes()
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in TYPES
    }


def _slim(path: Path) -> bytes:
    """A file of our own without comments and indentation, which are for those who change it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in COMMENTS:
        text = COMMENTS[path.suffix].sub("", text)
        text = "\n".join(line.strip() for line in text.splitlines() if line.strip())
    if path.suffix == ".js":
        text = "\n".join(SIGNS.sub(lambda found: found[1] or found[2], line) for line in text.splitlines())
    if path.suffix == ".css":
        text = SPACES.sub(lambda found: found[1] or found[2] or found[3], text).replace(";}", "}")
    return text.encode()


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

"""When two errors are the same: their first lines agree, but for what varies, and the user's own frame."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from stoker.model.redact import Redaction

if TYPE_CHECKING:
    from stoker.model.job import Job

_MASK = Redaction()
_VARYING = re.compile(
    r"""(?ix) [0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}  # a UUID
        | "[^"]*" | (?<!\w)'[^']*' | `[^`]*`               # what is quoted
        | \b0x[0-9a-f]+\b | \b(?=[a-z]*\d)[0-9a-f]{6,}\b   # hex
        | \d+"""
)
_FRAME = re.compile(r'  File "([^"]*)", line \d+, in (.+)')
_SEPARATOR = re.compile(r"[/\\]")
_CAUSES = ("Caused by ", "While handling ", "Member ")
ELLIPSIS = "…"

LONGEST_SIGNATURE: Final = 200
"""Letters of the line in a signature; what follows is left out."""

PREFIX: Final = "err_"
"""What a fingerprint begins with: no id of a job does."""

_CLASS = re.compile(r"([A-Za-z_…][\w….]{0,99})(?::|$)")
_FAILURES = ("Error", "Exception", "Group", "Timeout", "Warning", "Exit", "Interrupt")

LIBRARY: Final = ("site-packages", "dist-packages", "lib/python")
"""Parts of the paths of installed packages."""


def error_line(error: str | None) -> str:
    """The first line of an error: its class and message."""
    return ((error or "").strip().splitlines() or [""])[0][:500]


def normalized_error(error: str | None) -> str:
    """The first line of an error, with what varies replaced by `…`: ids, numbers, hex, quoted text.

    Secrets are masked first: whether two jobs have the same error must not say whether they have the same password.
    """
    return _normalized(error_line(error))


@lru_cache(maxsize=1_000)
def _normalized(line: str) -> str:
    return _VARYING.sub(ELLIPSIS, _MASK.text(line))


def own_frame(error: str | None) -> str:
    """The innermost frame of the user's own code: folder, file and function; empty where there is none.

    Only frames of the exception that ended the run count, not those of its causes. The line number and the folders
    above are left out: they change with a deployment.
    """
    found = ""
    inside = False
    for line in (error or "").strip().splitlines()[1:]:
        if line.startswith(_CAUSES) or (inside and not line.startswith("  ")):
            break
        if line.startswith("Traceback "):
            inside = True
        elif inside and (frame := _FRAME.fullmatch(line)) is not None and is_own(frame[1]):
            folder_and_file = "/".join(_SEPARATOR.split(frame[1])[-2:])
            found = f"{folder_and_file} in {frame[2]}"
    return found


def is_own(path: str) -> bool:
    """Is a file the user's own, and not that of an installed package?"""
    return not any(place in path for place in LIBRARY)


def signature(error: str | None) -> str:
    """What errors that are the same have in common: the normalized line and, below it, the user's own frame.

    Empty without an error.
    """
    line = normalized_error(error)[:LONGEST_SIGNATURE]
    frame = own_frame(error)
    return f"{line}\n{frame}" if frame else line


def readable_part(signature_: str, digest: str) -> str:
    """What stays readable of a sealed error with this signature: class and place, and a digest for the message.

    It is written as errors are, so that every rule about them finds class and place in it.
    """
    line, frame = parts(signature_)
    name, told = _CLASS.match(line), f"sealed {digest}"
    if name is not None and (frame or name[1].endswith(_FAILURES)):
        classed = f"{name[1]}: {told}"
        told = classed if normalized_error(classed) == classed else told
    path, _, function = frame.rpartition(" in ")
    placed = f'{told}\nTraceback (most recent call last):\n  File "{path}", line 0, in {function}'
    return placed if frame and own_frame(placed) == frame else told


def signature_of(job: Job) -> str:
    """The signature of a job's last error, as its store knows it."""
    return job.known_as or signature(job.last_error)


def parts(signature_: str) -> tuple[str, str]:
    """The line and the frame of a signature."""
    line, _, frame = signature_.partition("\n")
    return line, frame


def fingerprint(signature_: str) -> str:
    """The short name of a signature, by which its jobs are found (`same_error:err_9f1a02c3d4e5`)."""
    return PREFIX + blake2b(signature_.encode(errors="replace"), digest_size=6).hexdigest()


def fingerprint_of(error: str | None) -> str:
    """The fingerprint of an error as stored."""
    return fingerprint(signature(error))


_FINGERPRINT = re.compile(rf"{PREFIX}[0-9a-f]{{12}}")


def is_fingerprint(text: str) -> bool:
    """Is a text the short name of an error?"""
    return _FINGERPRINT.fullmatch(text) is not None

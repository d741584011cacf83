"""Which release of the app a process runs: what the environment says, else the git revision of the working folder."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Final

VARIABLE: Final = "STOKER_RELEASE"
LONGEST: Final = 128
REVISION: Final = 12
"""Digits of a git revision that are shown."""

_HASH = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


@cache
def release() -> str:
    """The release of this process, as it was when first asked; empty where none is known."""
    given = os.environ.get(VARIABLE, "").strip()
    return given[:LONGEST] if given else revision(Path.cwd())


def revision(folder: Path) -> str:
    """The first digits of the commit that a git checkout is at; empty outside of one. Nothing is executed."""
    try:
        for place in (folder, *folder.parents):
            git = place / ".git"
            if git.exists():
                return _commit(git)[:REVISION]
    except OSError:  # it may not be read
        pass
    return ""


def _commit(git: Path) -> str:
    if git.is_file():  # of a worktree: the path of its folder
        git = git.parent / git.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    name = head.removeprefix("ref:").strip()
    if name == head:
        return head if _HASH.fullmatch(head) else ""
    common = git / "commondir"
    shared = git / common.read_text(encoding="utf-8").strip() if common.is_file() else git
    for folder in (git, shared):
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8").strip()
    packed = shared / "packed-refs"
    lines = packed.read_text(encoding="utf-8").splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), "")

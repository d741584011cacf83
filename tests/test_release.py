"""Which release a process runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.release import release, revision

COMMIT = "9fceb02d0ae598e95dc970b74767f19372d61af8"


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    release.cache_clear()
    yield
    release.cache_clear()


def checkout(folder: Path, head: str, **files: str) -> Path:
    git = folder / ".git"
    for name, text in {"HEAD": head, **files}.items():
        place = git / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n", encoding="utf-8")
    return folder


@pytest.mark.spec("RELEASE-01")
def test_a_revision_is_read_without_git(tmp_path: Path) -> None:
    named = "ref: refs/heads/main"
    assert revision(checkout(tmp_path / "a", COMMIT)) == COMMIT[:12]
    assert revision(checkout(tmp_path / "b", named, **{"refs/heads/main": COMMIT})) == COMMIT[:12]
    packed = {"packed-refs": f"# pack-refs\n{'0' * 40} refs/heads/other\n{COMMIT} refs/heads/main"}
    deep = checkout(tmp_path / "c", named, **packed) / "src" / "shop"
    deep.mkdir(parents=True)
    assert revision(deep) == COMMIT[:12]
    assert revision(checkout(tmp_path / "d", named)) == ""
    assert revision(checkout(tmp_path / "e", "no revision")) == ""
    worktree = tmp_path / "f"
    worktree.mkdir()
    (worktree / ".git").write_text(f"gitdir: {tmp_path / 'b' / '.git' / 'worktrees' / 'f'}\n", encoding="utf-8")
    checkout(tmp_path / "b", named, **{"worktrees/f/HEAD": named, "worktrees/f/commondir": "../.."})
    assert revision(worktree) == COMMIT[:12]
    (worktree / ".git").write_text("gitdir: nowhere\n", encoding="utf-8")
    assert revision(worktree) == "", "what cannot be read is no reason to fail"


@pytest.mark.spec("RELEASE-01")
def test_the_environment_comes_before_the_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout(tmp_path, COMMIT))
    monkeypatch.setenv("STOKER_RELEASE", " 2026.11.18 ")
    assert release() == "2026.11.18"
    release.cache_clear()
    monkeypatch.delenv("STOKER_RELEASE")
    assert release() == COMMIT[:12]

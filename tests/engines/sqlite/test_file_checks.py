from __future__ import annotations

import os
import pwd
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.engines.sqlite import file_checks
from stoker.engines.sqlite.connection import identity
from stoker.engines.sqlite.file_checks import filesystem, inspect_path, version_warning
from stoker.model.errors import EngineReadOnly, EngineRefused, EngineUnavailable

pytestmark = pytest.mark.engine("sqlite")

MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 27 0:40 / /srv rw,relatime shared:1 - ext4 /dev/vdb rw
29 28 0:41 / /srv/share rw,relatime - nfs4 host:/export rw,vers=4.2
30 28 0:42 / /srv/my\040files rw,relatime - fuse.sshfs user@host: rw
31 28 0:43 / /srv/local rw,relatime - fuse.mergerfs a:b rw
32 28 0:44 / /srv/over rw,relatime - cifs //host/share rw
33 28 0:45 / /srv/over rw,relatime - xfs /dev/vdc rw
a broken line
"""


def as_nobody(action: Callable[[], object]) -> str:
    """Run an action as a user without rights; returns the error's name and message, or an empty text."""
    if os.geteuid() != 0:
        try:
            action()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        text = ""
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            action()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        result = pipe.read()
    os.waitpid(pid, 0)
    return result


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.spec("SQLITE-52")
@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.s3fs", "vboxsf"])
def test_a_shared_file_system_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(file_checks, "filesystem", lambda folder: kind)
    with pytest.raises(EngineRefused, match=kind):
        inspect_path(tmp_path / "jobs.db")
    assert not (tmp_path / "jobs.db").exists()


@pytest.mark.spec("SQLITE-52")
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "overlay", "tmpfs", "apfs", "fuseblk", "fuse.mergerfs", None])
def test_a_local_file_system_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    monkeypatch.setattr(file_checks, "filesystem", lambda folder: kind)
    inspect_path(tmp_path / "jobs.db")


@pytest.mark.spec("SQLITE-52")
@pytest.mark.parametrize(
    "folder, kind",
    [
        ("/srv/share", "nfs4"),
        ("/srv/share/deep/down", "nfs4"),
        ("/srv/shared", "ext4"),
        ("/srv/my files/x", "fuse.sshfs"),
        ("/srv/local", "fuse.mergerfs"),
        ("/srv/over/x", "xfs"),
        ("/elsewhere", "ext4"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, kind: str
) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    monkeypatch.setattr(file_checks, "MOUNTS", tmp_path / "mountinfo")
    monkeypatch.setattr(file_checks.sys, "platform", "linux")  # type: ignore[attr-defined]
    assert filesystem(Path(folder)) == kind


def test_an_unknown_file_system_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_checks, "MOUNTS", tmp_path / "none")
    assert filesystem(tmp_path) is None
    (tmp_path / "mountinfo").write_text("1 0 0:1 / / rw - 9p none rw\n2 1 0:2 / /mnt/c rw - 9p drvfs rw\n")
    monkeypatch.setattr(file_checks, "MOUNTS", tmp_path / "mountinfo")
    assert filesystem(tmp_path) is None
    assert filesystem(Path("/mnt/c/db")) == "9p"


@pytest.mark.spec("SQLITE-53")
def test_a_new_file_is_for_its_owner_alone_and_so_are_its_side_files(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    old = os.umask(0)
    try:
        inspect_path(path)
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode=wal")
        connection.execute("CREATE TABLE t (a)")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
        connection.close()
    finally:
        os.umask(old)
    assert modes == {"jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600}


@pytest.mark.spec("SQLITE-53")
@pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal"])
def test_a_link_is_refused(tmp_path: Path, end: str) -> None:
    (tmp_path / f"jobs.db{end}").symlink_to(tmp_path / "target")
    with pytest.raises(EngineRefused, match="symbolic link"):
        inspect_path(tmp_path / "jobs.db")
    assert not (tmp_path / "target").exists()


@pytest.mark.spec("SQLITE-53")
def test_a_file_that_a_foreign_member_of_its_group_can_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    path.chmod(0o660)
    us = {0, os.geteuid()}
    monkeypatch.setattr(file_checks, "members", lambda _group: us)
    file_checks.inspect_path(path)
    monkeypatch.setattr(file_checks, "members", lambda _group: us | {4_000_000_000})
    with pytest.raises(EngineRefused, match=r"writable for other users of this host \(uid 4000000000\).*chmod g-w"):
        file_checks.inspect_path(path)
    path.chmod(0o640)
    file_checks.inspect_path(path)


def test_the_members_of_a_group_are_those_of_this_host() -> None:
    user = pwd.getpwuid(os.geteuid())
    assert user.pw_uid in file_checks.members(user.pw_gid)
    assert file_checks.members(4_000_000_000) == set()
    assert file_checks.user_name(user.pw_uid) == user.pw_name


@pytest.mark.spec("SQLITE-53")
def test_a_file_that_all_users_can_write_to_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.touch()
    path.chmod(0o666)
    with pytest.raises(EngineRefused, match="writable for all users"):
        inspect_path(path)
    path.chmod(0o644)
    inspect_path(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.spec("SQLITE-53")
def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()
    with pytest.raises(EngineRefused, match="not a regular file"):
        inspect_path(tmp_path / "jobs.db")
    for name in (":memory:", "file:jobs.db?mode=memory"):
        with pytest.raises(EngineRefused, match="memory://"):
            inspect_path(name)


@pytest.mark.spec("SQLITE-53")
def test_a_folder_where_other_users_could_replace_the_file_is_refused(open_folder: Path) -> None:
    if os.geteuid() == 0:
        open_folder.chmod(0o777)
        os.chown(open_folder, 12345, 12345)
        with pytest.raises(EngineRefused, match="could replace"):
            inspect_path(open_folder / "jobs.db")
        open_folder.chmod(0o1777)
        inspect_path(open_folder / "jobs.db")


@pytest.mark.spec("SQLITE-54")
def test_a_folder_that_cannot_be_written_to_is_named(open_folder: Path) -> None:
    if os.geteuid() != 0:
        open_folder.chmod(0o555)
    result = as_nobody(lambda: inspect_path(open_folder / "jobs.db"))
    assert result.startswith("EngineReadOnly")
    assert str(open_folder) in result


@pytest.mark.spec("SQLITE-54")
def test_a_file_that_cannot_be_written_to_is_named(open_folder: Path) -> None:
    path = open_folder / "jobs.db"
    path.touch()
    path.chmod(0o444)
    if os.geteuid() == 0:
        open_folder.chmod(0o1777)
    result = as_nobody(lambda: inspect_path(path))
    assert result.startswith("EngineReadOnly")
    assert "jobs.db" in result


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="nowhere"):
        inspect_path(tmp_path / "nowhere" / "jobs.db")


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(EngineUnavailable, match="No space left"):
        inspect_path(tmp_path / "jobs.db")


def test_a_read_only_folder_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *args: False)
    with pytest.raises(EngineReadOnly):
        inspect_path(tmp_path / "jobs.db")


def test_an_existing_database_is_never_opened(tmp_path: Path) -> None:
    """Closing a second descriptor would drop the locks of connections that are open in this process."""
    path = tmp_path / "jobs.db"
    inspect_path(path)
    mine = sqlite3.connect(path, isolation_level=None)
    mine.execute("BEGIN EXCLUSIVE")
    inspect_path(path)
    if (pid := os.fork()) == 0:
        try:
            sqlite3.connect(path, timeout=0, isolation_level=None).execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    mine.close()


@pytest.mark.spec("SQLITE-55")
@pytest.mark.parametrize(
    "version, affected",
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 44, 9), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 0), True),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
        ((4, 0, 0), False),
    ],
)
def test_versions_with_the_wal_reset_bug_are_named(version: tuple[int, ...], affected: bool) -> None:
    warning = version_warning(version)
    assert (warning is not None) == affected
    if warning:
        assert ".".join(map(str, version)) in warning
        assert "3.51.3" in warning
        assert "?journal=delete" in warning
        assert len(warning) <= 200
        assert "\n" not in warning
        assert warning.startswith("What Stoker writes through its own connections is safe. A job enqueued with tx= is")


@pytest.mark.spec("SQLITE-56")
def test_a_deleted_or_replaced_file_has_another_identity(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    assert identity(path) is None
    inspect_path(path)
    first = identity(path)
    assert first == identity(str(path))
    # Both exist at once: a deleted file's number may be given away again.
    (tmp_path / "other").touch()
    (tmp_path / "other").rename(path)
    assert identity(path) not in {None, first}

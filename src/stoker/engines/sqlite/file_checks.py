"""Checks before a database is opened: its file system, its rights, and the version of SQLite.

The engine calls `inspect_path` at every open, before SQLite sees the file. `version_warning` is for `describe` and for
the log of a worker.

Rule: nothing here ever opens an existing database. Closing any descriptor of a file drops all locks the process has
on it, also those of the user's own connections.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
import sys
from pathlib import Path

from stoker.model.errors import EngineReadOnly, EngineRefused, EngineUnavailable

MOUNTS = Path("/proc/self/mountinfo")
SIDE_FILES = ("-wal", "-shm", "-journal")

# fmt: off
SHARED = frozenset({
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fhgfs", "gfs", "gfs2", "glusterfs",
    "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb", "smb2", "smb3",
    "smbfs", "vboxsf", "vmhgfs", "webdav",
})
"""File systems that other hosts can write to: neither SQLite's shared memory nor its locks work between hosts."""

SHARED_FUSE = frozenset({
    "beegfs", "blobfuse", "blobfuse2", "ceph-fuse", "curlftpfs", "cvmfs", "davfs2", "gcsfuse", "geesefs",
    "glusterfs", "goofys", "hdfs", "jmtpfs", "juicefs", "mfs", "moosefs", "mount-s3", "rclone", "s3fs",
    "s3ql", "seaweedfs", "sshfs", "smbnetfs", "vmhgfs-fuse", "weed",
})
# fmt: on

FIXED_IN = ((3, 44, 6), (3, 50, 7), (3, 51, 3))
FIRST_AFFECTED = (3, 7, 0)


def inspect_path(path: str | os.PathLike[str]) -> None:
    """Refuse an unsafe path, and create the file, readable for its owner alone, if there is none.

    Raises `EngineRefused` for a place that is unsafe, `EngineReadOnly` for one that cannot be written to and
    `EngineUnavailable` for a folder that is not there.
    """
    path = Path(path)
    if path.name.startswith(":") or str(path).startswith("file:"):
        raise EngineRefused(f"{str(path)!r} is not a path of a file. For a store in memory use memory://")
    folder = path.parent
    if not folder.is_dir():
        raise EngineUnavailable(f"the folder {folder} of the database {path} does not exist. Create it, or mount it")
    inspect_filesystem(path)
    inspect_folder(folder)
    for file in (path, *(path.with_name(path.name + end) for end in SIDE_FILES)):
        inspect_file(file)
    create(path)


def inspect_filesystem(path: Path) -> None:
    name = filesystem(path.parent)
    if name is None:
        return
    kind, _, helper = name.partition(".")
    if kind in SHARED or (kind.startswith("fuse") and helper in SHARED_FUSE):
        raise EngineRefused(
            f"the database {path} lies on a network or shared file system ({name}), where SQLite's locks and shared "
            "memory do not hold and the file would be corrupted. Put it on a local disk, or use postgresql:// or "
            "redis:// for several hosts"
        )


def inspect_folder(folder: Path) -> None:
    found = folder.stat()
    foreign = found.st_uid not in {0, os.geteuid()}
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX and foreign:
        raise EngineRefused(
            f"the folder {folder} belongs to another user and is writable for all users, who could replace the "
            "database in it. Use a folder of your own, or take the right away: chmod o-w"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise EngineReadOnly(
            f"the folder {folder} is not writable for this user (uid {os.geteuid()}). SQLite keeps its log beside the "
            "database and needs to create files there. Change its owner or rights, or remount it writable"
        )


def inspect_file(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise EngineRefused(f"{path} is a symbolic link. Give the path of the database itself: {path.resolve()}")
    if not stat.S_ISREG(found.st_mode):
        raise EngineRefused(f"{path} is not a regular file")
    if found.st_mode & stat.S_IWOTH:
        raise EngineRefused(
            f"{path} is writable for all users of this host, who could forge jobs in it. Take the right away: chmod o-w"
        )
    if found.st_mode & stat.S_IWGRP and (others := members(found.st_gid) - {0, found.st_uid, os.geteuid()}):
        raise EngineRefused(
            f"{path} is writable for other users of this host ({', '.join(sorted(map(user_name, others))[:5])}), who "
            "could forge jobs in it. Take the right away: chmod g-w"
        )
    # SQLite may remove a journal between the two checks: one that is gone by now is no error.
    if not os.access(path, os.R_OK | os.W_OK) and os.path.lexists(path):
        raise EngineReadOnly(f"{path} is not readable and writable for this user (uid {os.geteuid()})")


def members(group: int) -> set[int]:
    """Return the ids of the users in a group, as far as this host knows them."""
    users = {user.pw_name: user for user in pwd.getpwall()}
    try:
        named = set(grp.getgrgid(group).gr_mem)
    except KeyError:
        named = set()
    return {user.pw_uid for name, user in users.items() if user.pw_gid == group or name in named}


def user_name(user: int) -> str:
    """Return the name of a user, or the number of one without a name."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"uid {user}"


def create(path: Path) -> None:
    """Create an empty file for its owner alone.

    SQLite gives its own files the rights of the database.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise EngineUnavailable(f"the database {path} cannot be created: {error.strerror}") from error
    os.close(fd)


def filesystem(folder: Path) -> str | None:
    """Return the type of a folder's file system, such as ext4 or fuse.sshfs; None if it is unknown.

    A root file system of type 9p is that of a sandbox, which no other host can write to: it counts as unknown.
    """
    if sys.platform != "linux":
        return None
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    target = folder.resolve()
    best, kind = Path("/"), None
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4]))
        # Of two mounts on one point the later one hides the earlier.
        if target.is_relative_to(point) and (kind is None or point.is_relative_to(best)):
            best, kind = point, right.split(" ")[0]
    return None if kind == "9p" and best == Path("/") else kind


def version_warning(version: tuple[int, ...]) -> str | None:
    """Return what to know about a SQLite with the WAL-reset bug, which can lose commits of other programs."""
    version = tuple(version[:3])
    fixed = version >= FIXED_IN[-1] or any(version[:2] == fix[:2] and version >= fix for fix in FIXED_IN)
    if fixed or version < FIRST_AFFECTED:
        return None
    return (
        "What Stoker writes through its own connections is safe. A job enqueued with tx= is as safe as your commits, "
        f"which SQLite {'.'.join(map(str, version))} can lose (WAL-reset bug): "
        "use 3.51.3, 3.50.7, 3.44.6 or ?journal=delete"
    )

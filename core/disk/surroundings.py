"""Findings about a directory of the master. The checks change nothing."""

from __future__ import annotations

import itertools
import os
import pathlib
import pwd
import stat

from saltext.jobs.core.findings import Finding, fault

#: Free bytes, and the free share of inodes, below which the disk is worth a finding.
LEAST_BYTES, LEAST_INODES = 1 << 30, 0.05
#: Free bytes, and inodes, below which a disk is full: what some publishes at one moment may take.
FULL_BYTES, FULL_INODES = 16 << 20, 64
#: Permissions that others must not have: any, or to write.
FOR_OWNER, READABLE = 0o077, 0o022


def about_files(user: str, folder: pathlib.Path, most: int | None = None, closed: int = FOR_OWNER) -> list[Finding]:
    """
    Return findings about files in or below a directory that are not those of ``user``, the master's, or that others may use
    (``closed``: FOR_OWNER or READABLE). ``most``: how many files and directories to look at; by default all.
    """
    try:
        owner = pwd.getpwnam(user).pw_uid
    except KeyError:
        return [fault("user-unknown", f"the master's user {user!r} does not exist on this machine")]
    found = folder.rglob("*") if folder.is_dir() else iter(())
    for path in itertools.islice(itertools.chain([folder], sorted(found) if most is None else found), most):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # it does not exist, or was replaced meanwhile
        if status.st_uid != owner:
            told = f"{path} does not belong to the master's user {user}"
            return [fault("file-owner", told, f"chown -R {user} {folder}")]
        if status.st_mode & closed and not stat.S_ISLNK(status.st_mode):
            what, mode = "written" if status.st_mode & READABLE else "read", "-w" if closed == READABLE else "="
            return [fault("file-mode", f"{path} can be {what} by others than {user}", f"chmod -R go{mode} {folder}")]
    return []


def about_disk(folder: pathlib.Path) -> list[Finding]:
    """Return findings if space or inodes are scarce on the disk of a directory that may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    disk, found = os.statvfs(folder), []
    free = disk.f_bavail * disk.f_frsize
    if free < LEAST_BYTES:
        told = f"the disk of {folder} has {free >> 20} MB left: nothing is published while a record of it cannot be written"
        found.append(fault("disk-space", told, "make room"))
    if disk.f_files and disk.f_favail < LEAST_INODES * disk.f_files:
        told = f"the disk of {folder} has {disk.f_favail} inodes left, of {disk.f_files}, and each new file needs one"
        found.append(fault("disk-inodes", told, "remove files"))
    return found


def why_closed(folder: str) -> str:
    """Return ``full`` if the disk of a directory has no room for some publishes, ``read-only``, or an empty text."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return ""  # whatever it is, a write will tell
    if disk.f_flag & os.ST_RDONLY:
        return "read-only"
    least = min(FULL_BYTES, disk.f_blocks * disk.f_frsize // 16)  # some disks tell no size
    free = (disk.f_bavail if os.geteuid() else disk.f_bfree) * disk.f_frsize
    lacks_inodes = bool(disk.f_files) and disk.f_ffree < FULL_INODES
    return "full" if free < least or lacks_inodes else ""

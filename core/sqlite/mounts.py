"""Which directories are on another machine."""

from __future__ import annotations

import os
import re

#: Network file systems: processes of several machines share no memory.
_REMOTE = frozenset(
    (
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
    )
) | {"orangefs", "smb3", "smbfs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "virtiofs", "vboxsf"}

_has_remote = re.compile(f" (?:{'|'.join(map(re.escape, sorted(_REMOTE)))}) ").search


def remote_file_system(folder: str, mounts: str) -> str | None:
    """
    Return the type of the network file system that a directory is on; None for a local one.

    :param folder: its absolute path.
    :param mounts: as in ``/proc/self/mounts``.
    """
    if not _has_remote(mounts):
        return None  # as nearly everywhere
    folder = os.path.realpath(folder)
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        place = fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        if (folder == place or folder.startswith(place.rstrip("/") + "/")) and len(place) >= len(best):
            best, kind = place, fields[2]
    return kind if kind in _REMOTE else None


def mounts() -> str:
    """Return the kernel's list of mounts; empty if there is none."""
    try:
        with open("/proc/self/mounts", "rb", buffering=0) as stream:
            return os.fsdecode(stream.read())
    except OSError:
        return ""

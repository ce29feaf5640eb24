"""Which files of this extension other users of the machine could touch."""

from __future__ import annotations

import os
import pathlib
import stat


def not_private(folder: pathlib.Path, owner: int | None = None) -> list[str]:
    """
    Return what is wrong with a folder and with everything in it. All right are directories, files and sockets that belong
    to ``owner`` (by default the owner of the folder's parent), that others may not touch, and that have no other name.
    """
    owner = folder.parent.stat().st_uid if owner is None else owner
    found = [
        folder,
        *(pathlib.Path(base) / name for base, folders, names in os.walk(folder) for name in folders + names),
    ]
    wrong = []
    for path in found:
        what = path.lstat()
        is_ours = stat.S_ISDIR(what.st_mode) or stat.S_ISREG(what.st_mode) or stat.S_ISSOCK(what.st_mode)
        if not is_ours:
            wrong.append(f"{path} is a link or a device")
        elif what.st_uid != owner:
            wrong.append(f"{path} belongs to {what.st_uid}")
        elif stat.S_IMODE(what.st_mode) & 0o077:
            wrong.append(f"{path} has mode {stat.S_IMODE(what.st_mode):o}")
        elif stat.S_ISREG(what.st_mode) and what.st_nlink > 1:
            wrong.append(f"{path} has another name")
    return wrong

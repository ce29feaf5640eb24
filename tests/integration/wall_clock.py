"""
A wall clock that a test sets, back and forward, for some processes while they run: a master and its engines, whatever
they start and fork. All other processes, and all clocks that cannot be set, stay as they are.

Linux can give processes other steady clocks (``unshare --time``), but no other time of day. Setting the machine's own would
affect everything that runs on it. So the calls that read it come from a library that is loaded before C's own
(``wall_clock.c``). The times of files stay the machine's: do not test with it what depends on them.
"""

from __future__ import annotations

import mmap
import pathlib
import shutil
import struct
import subprocess

from tests.missing import missing

_CODE = pathlib.Path(__file__).with_name("wall_clock.c")
_SECONDS = struct.Struct("=q")


class WallClock:
    """
    Right at first. ``environment``: what a process must be started with, and not only forked, to go by it.

    :param folder: for its files.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if compiler is None:
            missing("there is no C compiler")
        library, said = folder / "wall_clock.so", folder / "wall_clock"
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_CODE)], check=True)
        said.write_bytes(_SECONDS.pack(0))
        with said.open("r+b") as file:
            self._said = mmap.mmap(file.fileno(), _SECONDS.size)
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK": str(said)}

    def set(self, seconds: int) -> None:
        """Have it be ahead of the true time by so many seconds from now on; 0 sets it right."""
        _SECONDS.pack_into(self._said, 0, seconds)

    def close(self) -> None:
        self._said.close()

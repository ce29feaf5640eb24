"""
Keeps what ``rawfile_json`` writes in whole lines.

That returner writes a return piece by piece. One that is no JSON, or a disk that gets full, leaves the beginning of a line
behind, and the next return, a good one, would be written to the end of that line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import salt.returners
import salt.utils.files

NAME = "rawfile_json"


class Lines:
    """
    :param opts: the master's options.
    """

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self._opts = opts
        #: Whether the file may end in the beginning of a line.
        self.may_be_torn = True

    def prepare(self, ret: Mapping[str, Any]) -> None:
        """
        Make sure that ``ret`` can be written, and will begin a line.

        :raises Exception: when it is no JSON, or the file can't be used.
        """
        json.dumps(ret, ensure_ascii=False).encode()
        if self.may_be_torn:
            self._end_line(ret)
            self.may_be_torn = False

    def _end_line(self, ret: Mapping[str, Any]) -> None:
        options = salt.returners.get_returner_options(
            NAME,
            dict(ret),
            {"filename": "filename"},
            __opts__=self._opts,
            defaults={"filename": "/var/log/salt/events"},
        )
        with salt.utils.files.flopen(options["filename"], "ab+") as stream:
            if stream.seek(0, os.SEEK_END):
                stream.seek(-1, os.SEEK_END)
                if stream.read(1) != b"\n":
                    stream.write(b"\n")

"""The user who runs the tests: root in continuous integration, any user elsewhere."""

from __future__ import annotations

import os
import pwd

USER = pwd.getpwuid(os.geteuid()).pw_name
#: Another user, which every machine has.
OTHER = "nobody" if USER == "root" else "root"

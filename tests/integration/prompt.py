"""What an operator types on a master: Salt's commands are begun warm, everything else goes to bash."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

from tests.integration import warm
from tests.integration.conftest import COMMAND
from tests.waiting import SOON, stretched

#: Where Salt's commands are.
_FOLDER = os.path.dirname(sys.executable)
_COMMANDS = ("salt", "salt-call", "salt-key", "salt-run")
#: Characters that mean more to a shell than words of a command.
_SHELL = set("|&;<>()")


def at_prompt(line, config_dir):
    """
    Type a command, and wait for its end.

    :param config_dir: the folder of the master's configuration.
    :returns: its exit status, and what it has printed, errors included.
    """
    path = os.pathsep.join([_FOLDER, os.environ["PATH"]])
    environment = {**os.environ, "SALT_CONFIG_DIR": str(config_dir), "PATH": path, "COLUMNS": "80"}
    if words := _words_of(line):
        if words[0] == "salt":  # else it waits for as long as the master's configuration says
            words.insert(1, f"--timeout={stretched(SOON)}")
        status, printed = warm.typed([os.path.join(_FOLDER, words[0]), *words[1:]], environment, stretched(COMMAND))
        # Salt 3008 complains of objects of its own that are unclosed when a command ends: no page shows that.
        kept = [part for part in printed.splitlines(keepends=True) if not part.startswith("unclosed ")]
        return status, "".join(kept)
    done = subprocess.run(
        ["bash", "-c", line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=stretched(COMMAND),
    )
    return done.returncode, done.stdout


def _words_of(line):
    """The words of a command of Salt's; None if only a shell can run it."""
    if "$" in line or "`" in line:
        return None
    lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    plain = words[0] in _COMMANDS and not any(set(word) <= _SHELL for word in words if word)
    return words if plain else None

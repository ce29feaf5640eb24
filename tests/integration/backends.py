"""
Logins of every kind, each by a real backend: PAM's library with its own service, an LDAP server on a free port, a file with
hashed passwords, and access lists from a module of the site.

Nothing on the machine is changed: PAM's service and its users are in a folder of the test (libpam-wrapper).
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import importlib.util
import json
import pathlib
import shutil
import sys

from tests.functional.cache_servers import Server, free_port, server_program
from tests.missing import missing

#: The password of every user.
SECRET = "an even longer secret"

#: What Salt runs for PAM (``auth.pam.python``): it takes the library's functions from the process, the wrapper's first.
_PAM = """#!/bin/sh
PYTHONPATH={folder} PAM_WRAPPER=1 PAM_WRAPPER_SERVICE_DIR={folder}/services LD_PRELOAD={wrapper} exec {python} "$@"
"""
_SITE = """
import ctypes.util
found = ctypes.util.find_library
ctypes.util.find_library = lambda name: None if name == "pam" else found(name)
"""


def pam(folder: pathlib.Path, *users):
    """Options of a master whose PAM knows these users."""
    wrapper, module = glob.glob("/usr/lib/*/libpam_wrapper.so"), glob.glob("/usr/lib/*/pam_wrapper/pam_matrix.so")
    if not wrapper or not module:
        missing("libpam-wrapper is not installed")
    for path, text in {
        "services/login": "".join(
            f"{kind} required {module[0]} passdb={folder}/users\n" for kind in ("auth", "account")
        ),
        "users": "".join(f"{user}:{SECRET}:login\n" for user in users),
        "sitecustomize.py": _SITE,
        "python": _PAM.format(folder=folder, wrapper=wrapper[0], python=sys.executable),
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "python").chmod(0o755)
    return {"auth.pam.python": str(folder / "python")}


def passwords(path: pathlib.Path, *users):
    """The section of external_auth for a file with these users' passwords, hashed."""
    hashed = hashlib.sha256(SECRET.encode()).hexdigest()
    path.write_text("".join(f"{user}:{hashed}\n" for user in users))
    return {"^filename": str(path), "^hashtype": "sha256"}


_SLAPD = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/pid
database mdb
maxsize 16777216
suffix "dc=site"
rootdn "cn=salt,dc=site"
rootpw "{secret}"
directory {folder}
"""


class Ldap:
    """
    An LDAP server with these users, all of them in the group ``ops``.

    :ivar options: what a master needs to ask it.
    """

    def __init__(self, folder: pathlib.Path, *users):
        if importlib.util.find_spec("ldap") is None:
            missing("the Python module ldap (python-ldap) is not installed")
        folder.mkdir()
        port, config = free_port(), folder / "slapd.conf"
        config.write_text(_SLAPD.format(folder=folder, secret=SECRET))
        self._uri = f"ldap://127.0.0.1:{port}"
        # A copy: some systems bind the program at its own place to its own folders (AppArmor).
        program = shutil.copy(server_program("slapd"), folder)
        command = [program, "-d", "0", "-h", self._uri, "-f", str(config)]
        self._server = Server("slapd", command, self._answers, {}, folder)
        self.options = {
            f"auth.ldap.{name}": value
            for name, value in {
                "uri": self._uri,
                "basedn": "dc=site",
                "binddn": "cn=salt,dc=site",
                "bindpw": SECRET,
                "filter": "(uid={{ username }})",
                "accountattributename": "memberUid",
                "groupclass": "posixGroup",
                "groupou": "",
            }.items()
        }
        self._users = users

    def __enter__(self):
        self._server.start()
        with self._asking() as server:
            self._add(server, "dc=site", objectClass=["dcObject", "organization"], dc="site", o="site")
            for user in self._users:
                kinds = ["account", "simpleSecurityObject"]
                self._add(server, f"uid={user},dc=site", objectClass=kinds, uid=user, userPassword=SECRET)
            self._add(
                server, "cn=ops,dc=site", objectClass="posixGroup", cn="ops", gidNumber="1", memberUid=list(self._users)
            )
        return self

    def __exit__(self, *_):
        self._server.stop()

    def expel(self, user):
        """Take a user out of the group."""
        import ldap

        with self._asking() as server:
            server.modify_s("cn=ops,dc=site", [(ldap.MOD_DELETE, "memberUid", [user.encode()])])

    def _answers(self):
        import ldap

        try:
            with self._asking():
                pass
        except ldap.SERVER_DOWN as exc:
            raise OSError from exc

    @contextlib.contextmanager
    def _asking(self):
        import ldap

        server = ldap.initialize(self._uri)
        server.simple_bind_s("cn=salt,dc=site", SECRET)
        yield server
        server.unbind_s()

    @staticmethod
    def _add(server, dn, **attributes):
        wanted = {name: [value] if isinstance(value, str) else value for name, value in attributes.items()}
        server.add_s(dn, [(name, [item.encode() for item in value]) for name, value in wanted.items()])


#: An auth module of a site for ``eauth_acl_module``: the lists are in a file, and None leaves it to ``external_auth``.
_LISTED = """
import json

def auth(username, password, **kwargs):
    return False

def acl(username, **kwargs):
    with open({path!r}) as lists:
        return json.load(lists).get(username)
"""


class Listed:
    """Access lists that a module tells (``eauth_acl_module: listed``), from a file that may change at any time."""

    def __init__(self, folder: pathlib.Path, lists):
        self._path = folder / "lists.json"
        module = folder / "modules" / "auth" / "listed.py"
        module.parent.mkdir(parents=True)
        module.write_text(_LISTED.format(path=str(self._path)))
        self.options = {"eauth_acl_module": "listed", "module_dirs": [str(folder / "modules")]}
        self.write(lists)

    def write(self, lists):
        """Give these users these lists, and all others what ``external_auth`` says."""
        self._path.write_text(json.dumps(lists))

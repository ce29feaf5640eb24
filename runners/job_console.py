"""
The console: a page for the browser, served by salt-api, that shows and steers batches and the retry queue.

.. code-block:: bash

    salt-run job_console.config
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core import runner
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.options import kinds

__virtualname__ = "job_console"

# Salt's loader brings these.
__opts__: Mapping[str, Any]
__salt__: Mapping[str, Any]

#: The page's files are beside the runners, in an installed package as in a checkout.
_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "console")

#: Where salt-api serves the page by default. It must not be one of salt-api's own paths.
STATIC_PATH = "/console"
#: salt-api's own paths: each would hide the page, or be hidden by it.
_OWN = ("app", "events", "hook", "jobs", "keys", "login", "logout", "minions", "run", "stats", "token", "ws")


def __virtual__() -> str:
    return __virtualname__


@runner.verb
def config(static_path: object = STATIC_PATH) -> str:
    """
    Return the lines of the master's configuration with which salt-api serves the console of this installation.

    Settings that the configuration has already (port, certificates) are left out. If ``static`` belongs to another page,
    such as SaltGUI, it is not changed: the lines then say how to put the console below it.

    :param str static_path: the path of the page on the server.

    CLI Example:

    .. code-block:: bash

        salt-run job_console.config
        salt-run job_console.config static_path=/batches
    """
    path = _static_path(static_path)
    api = dict(__opts__.get("rest_cherrypy") or {})
    if _is_others(api.get("static"), folder=_FOLDER):
        return "\n".join(_beside(api, path))
    return "\n".join(_alone(api, path))


@runner.verb
def choices() -> dict[str, list[str]]:
    """
    Return the names that complete what is typed into the console's form for a new batch.

    :return: a dict with nodegroups and sls: the states of the environment ``base``, named as for ``state.apply``.

    CLI Example:

    .. code-block:: bash

        salt-run job_console.choices
    """
    files = __salt__["fileserver.file_list"]()
    names = {file[:-4].removesuffix("/init").replace("/", ".") for file in files if file.endswith(".sls")}
    return {"nodegroups": sorted(__opts__.get("nodegroups") or {}), "sls": sorted(names - {"top"})}


def _static_path(value: object) -> str:
    path = "/" + kinds.WORD.given("static_path", value).strip("/")
    plain = path.replace("/", "").replace("-", "").replace("_", "").replace(".", "")
    if path[1:] in _OWN or not plain.isalnum() or not plain.isascii() or ".." in path:
        raise Refused(
            f"static_path is {value!r}; accepted is a path of letters, digits, - and _ that is none of salt-api's own"
            f" ({', '.join(_OWN)}), such as {STATIC_PATH}"
        )
    return path


def _is_others(static: Any, folder: str = _FOLDER) -> bool:
    return bool(static) and os.path.realpath(static) != os.path.realpath(folder)


def _alone(api: Mapping[str, Any], path: str, folder: str = _FOLDER) -> list[str]:
    lines = ["rest_cherrypy:"]
    if "port" not in api:
        lines.append("  port: 8000")
    if not api.get("disable_ssl") and not ("ssl_crt" in api and "ssl_key" in api):
        lines += ["  ssl_crt: /etc/pki/tls/certs/localhost.crt", "  ssl_key: /etc/pki/tls/certs/localhost.key"]
    lines += [f"  static: {folder}", f"  static_path: {path}"]
    short = path == STATIC_PATH and not _is_others(os.path.dirname(api.get("app") or ""), folder)
    if short:  # open.html knows this path only
        lines += [f"  app: {os.path.join(folder, 'open.html')}", f"  app_path: {path}"]
    enabled = __opts__.get("netapi_enable_clients") or []
    if "runner" not in enabled:
        lines += ["netapi_enable_clients:", *(f"  - {name}" for name in (*enabled, "runner"))]
    return [*lines, f"# Restart salt-api, then open {_address(api)}{path}/{'' if short else 'index.html'}"]


def _beside(api: Mapping[str, Any], path: str, folder: str = _FOLDER) -> list[str]:
    name = path.rsplit("/", 1)[-1]
    static = api.get("static_path", "/static").rstrip("/")
    return [
        f"# rest_cherrypy serves {api['static']} already. Put the console below it:",
        f"#   ln -s {folder} {os.path.join(api['static'], name)}",
        f"# No line changes; open {_address(api)}{static}/{name}/index.html",
    ]


def _address(api: Mapping[str, Any]) -> str:
    scheme = "http" if api.get("disable_ssl") else "https"
    host = api.get("host", "0.0.0.0")
    name = __opts__.get("fqdn") or "MASTER" if host in ("0.0.0.0", "::") else host
    return f"{scheme}://{name}:{api.get('port', 8000)}{api.get('root_prefix', '').rstrip('/')}"

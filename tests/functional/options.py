"""The options of a master that does not run, all of whose folders are below one of the test's own."""

from __future__ import annotations

import salt.config


def options_in(folder, **more):
    """Return Salt's defaults for a master, with these places and ``more``."""
    opts = salt.config.master_config(None)
    names = ("cachedir", "pki_dir", "extension_modules", "sock_dir", "conf_file")
    places = zip(names, ("cache", "pki", "ext", "sock", "master"), strict=True)
    opts.update({name: str(folder / place) for name, place in places})
    opts.update({"id": "here_master", "root_dir": str(folder), "cluster_id": None, "grains": {}, **more})
    return opts

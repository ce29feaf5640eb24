"""A master's configuration, for runners that are called without a master."""

from __future__ import annotations

import gc
import getpass
import json
import os

import pytest
import salt.config
import salt.runner


@pytest.fixture(scope="module", autouse=True)
def jobs_that_are_gone():
    """
    Salt leaves the events of a runner's job to the garbage collector. Until then each runner that is called in this process
    believes that this job has called it, and reports its progress on that bus: a second if no process listens there.
    """
    yield
    gc.collect()


@pytest.fixture(scope="module")
def config(tmp_path_factory, deaf_bus):
    """A master's configuration; no master runs with it."""
    folder = tmp_path_factory.mktemp("m")
    (folder / "var" / "cache" / "salt" / "master" / "proc").mkdir(parents=True)
    (folder / "bus").symlink_to(deaf_bus)
    content = {
        "root_dir": str(folder),
        # Salt takes another sock_dir than it is told if that is longer than the cachedir it is told.
        "cachedir": str(folder / "var" / "cache" / "salt" / "master"),
        "user": getpass.getuser(),
        "id": "m_master",
        "log_file": str(folder / "log"),
        "master_job_cache": "salt_cache",
        "sock_dir": str(folder / "bus"),
        "grains_cache": True,
    }
    (folder / "master").write_text(json.dumps(content))
    assert os.path.samefile(salt.config.master_config(str(folder / "master"))["sock_dir"], deaf_bus)
    return folder


@pytest.fixture
def opts(config):
    return salt.config.master_config(str(config / "master"))


@pytest.fixture
def salt_run(opts, capsys):
    """Call a runner as ``salt-run`` does: what is printed on standard output and on standard error, and what it returns."""

    def call(function, *args, **more):
        capsys.readouterr()
        with salt.runner.Runner({**opts, "fun": function, "arg": list(args), **more}) as runner:
            returned = runner.run(full_return=True)
        printed = capsys.readouterr()
        return printed.out.rstrip("\n"), printed.err.rstrip("\n"), returned

    return call

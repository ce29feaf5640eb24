"""The lines that have salt-api serve the console of this installation."""

from __future__ import annotations

import pathlib

import pytest
import salt.config
import salt.loader
import yaml

from saltext.jobs.core.errors import Refused

CONSOLE = pathlib.Path(__file__).resolve().parents[3] / "console"


@pytest.fixture
def config(tmp_path):
    """job_console.config of a master with these options."""
    own = {"cachedir": str(tmp_path), "pki_dir": str(tmp_path), "extension_modules": str(tmp_path), "id": "m_master"}

    def call(*args, fun="config", **options):
        return salt.loader.runner({**salt.config.DEFAULT_MASTER_OPTS, **own, **options})[f"job_console.{fun}"](*args)

    return call


def test_a_master_without_an_api_gets_all_lines(config):
    lines = yaml.safe_load(config())
    assert lines["netapi_enable_clients"] == ["runner"]
    assert lines["rest_cherrypy"]["static_path"] == "/console"
    assert {"port", "ssl_crt", "ssl_key"} <= lines["rest_cherrypy"].keys()


def test_the_lines_name_the_page_of_this_installation(config):
    folder = pathlib.Path(yaml.safe_load(config())["rest_cherrypy"]["static"])
    assert folder == CONSOLE
    assert (folder / "index.html").is_file()


def test_options_that_are_set_are_not_printed_again(config):
    api = {"port": 3333, "disable_ssl": True, "host": "127.0.0.1"}
    said = config("/batches/", rest_cherrypy=api, netapi_enable_clients=["local", "runner"])
    assert yaml.safe_load(said) == {"rest_cherrypy": {"static": str(CONSOLE), "static_path": "/batches"}}
    assert said.splitlines()[-1].endswith("open http://127.0.0.1:3333/batches/index.html")


def test_clients_that_are_enabled_stay_so(config):
    assert yaml.safe_load(config(netapi_enable_clients=["local"]))["netapi_enable_clients"] == ["local", "runner"]


def test_beside_another_page_the_console_goes_below_it(config, tmp_path):
    api = {
        "port": 3333,
        "disable_ssl": True,
        "static": str(tmp_path),
        "static_path": "/static",
        "app": "/srv/index.html",
    }
    said = config(rest_cherrypy=api)
    assert yaml.safe_load(said) is None  # nothing is to be changed in the configuration
    assert f"ln -s {CONSOLE} {tmp_path}/console" in said
    assert "/static/console/index.html" in said


@pytest.mark.parametrize("path", ["/jobs", "events", "/", "/a b", "/../x", "/ä"])
def test_a_path_that_would_not_work_is_refused(config, path):
    with pytest.raises(Refused, match="accepted is a path"):
        config(path)


def test_nodegroups_and_states_complete_the_form(config, tmp_path):
    (tmp_path / "srv/web").mkdir(parents=True)
    for name in ("top.sls", "common.sls", "web/init.sls", "web/tls.sls", "web/tls.conf"):
        (tmp_path / "srv" / name).touch()
    files = {"file_roots": {"base": [str(tmp_path / "srv")]}, "fileserver_backend": ["roots"]}
    found = config(fun="choices", nodegroups={"eu": "L@a,b", "canary": "a"}, **files)
    assert found == {"nodegroups": ["canary", "eu"], "sls": ["common", "web", "web.tls"]}

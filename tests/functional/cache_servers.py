"""
Real servers for the cache drivers, on free loopback ports, and the master options that point at them.

Nothing here may touch a server that it did not start. If the program of a server is missing, the tests that need it are
skipped with the reason. If ``CI`` is set they fail, so that nothing is left untested unnoticed.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import importlib.util
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile

import psutil
import pytest

from demo.processes import free_port
from tests.faults import freeze, thaw
from tests.missing import missing
from tests.waiting import SOON, stretched, wait_for


def server_program(*names):
    for name in names:
        found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if found:
            return found
    return missing(f"{names[0]} is not installed")


def _client(module):
    if importlib.util.find_spec(module) is None:
        missing(f"the Python module {module} is not installed")


def _await(process, ready, what):
    def answers():
        if process.poll() is not None:
            pytest.fail(f"{what} ended with {process.returncode} while starting")
        with contextlib.suppress(OSError):
            ready()
            return True
        return False

    wait_for(answers, what=f"{what} answers")


class Server:
    """A started server: it can be killed and started again at the same place."""

    def __init__(self, name, command, ready, options, folder):
        self.name, self.command, self.ready, self.options = name, command, ready, options
        self.log = pathlib.Path(folder) / f"{name}.log"
        self.process = None

    def start(self):
        if self.process is None:  # a second one would take the place of the first, which then never stops
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            _await(self.process, self.ready, self.name)
        return self

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait(stretched(SOON))
            self.process = None

    def freeze(self):
        freeze(self.process.pid)

    def thaw(self):
        thaw(self.process.pid)


def _connects(port):
    def ready():
        socket.create_connection(("127.0.0.1", port), timeout=1).close()

    return ready


def redis_server(folder):
    """The log of its append-only file keeps what is stored through a restart."""
    _client("redis")
    port = free_port()
    command = [server_program("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
    options = {"cache": "redis", "cache.redis.host": "127.0.0.1", "cache.redis.port": port, "cache.redis.db": "0"}
    return Server("redis-server", command, _connects(port), options, folder)


def mysql_server(folder):
    _client("pymysql")
    import pymysql

    program, install = server_program("mariadbd", "mysqld"), server_program("mariadb-install-db", "mysql_install_db")
    user, data, port = pwd.getpwuid(os.getuid()).pw_name, pathlib.Path(folder) / "data", free_port()
    settings = ["--no-defaults", f"--user={user}", f"--datadir={data}"]
    quick = [
        "--innodb-flush-log-at-trx-commit=2",
        "--innodb-doublewrite=0",
        "--innodb-buffer-pool-size=16M",
        "--innodb-log-file-size=8M",
    ]
    subprocess.run(
        [install, *settings, "--auth-root-authentication-method=normal", "--skip-test-db", *quick[1:]],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=stretched(120),
    )
    command = [program, *settings, *quick, f"--port={port}", "--bind-address=127.0.0.1"]
    command += ["--max-allowed-packet=1M", f"--socket={folder}/m.sock", f"--pid-file={folder}/m.pid"]

    def ready():
        try:
            connection = pymysql.connect(host="127.0.0.1", port=port, user="root", password="", connect_timeout=2)
        except Exception as exc:
            raise AssertionError("not yet") from exc
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE IF NOT EXISTS salt_cache")

    options = {"cache": "mysql", "mysql.host": "127.0.0.1", "mysql.port": port, "mysql.user": "root"}
    options.update({"mysql.password": "", "mysql.database": "salt_cache", "mysql.connect_timeout": 5})
    return Server("mariadbd", command, ready, options, folder)


def etcd_server(folder):
    _client("etcd")
    port, peer = free_port(), free_port()
    client, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    command = [server_program("etcd"), "--enable-v2", "--data-dir", str(folder), "--unsafe-no-fsync", "--name", "one"]
    command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peers]
    command += ["--initial-advertise-peer-urls", peers, "--initial-cluster", f"one={peers}", "--log-level", "error"]

    def ready():
        import urllib.request

        with urllib.request.urlopen(f"{client}/health", timeout=2) as answer:
            assert b"true" in answer.read()

    options = {"cache": "etcd", "etcd.host": "127.0.0.1", "etcd.port": port}
    return Server("etcd", command, ready, options, folder)


class PostgresqlServer:
    """As ``Server``; with a database of its own for each caller that wants one."""

    def __init__(self, server):
        self.server = server
        place = {"host": "127.0.0.1", "port": server.port, "user": "salt", "db": "postgres"}
        self.options = {"cache": "postgresql", **{f"postgresql.{name}": value for name, value in place.items()}}
        #: The databases of those who still use them, and of those who do not.
        self.used, self._spare = set(), []

    @property
    def process(self):
        return self.server.process

    def start(self):
        if self.server.process is None:
            self.server.start()
        return self

    def stop(self):
        self.server.stop()

    def kill(self):
        """Kill all its processes."""
        freeze(self.process.pid)  # it makes no more children then
        for pid in (*self._children(), self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(stretched(SOON))
        self.server.process = None

    def freeze(self):
        freeze(self.process.pid)  # it makes no more children then
        freeze(*self._children())

    def thaw(self):
        thaw(*self._children(), self.process.pid)

    def _children(self):
        return [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]

    def make_database(self, name):
        """Make it, empty, and return the options for it."""
        with contextlib.closing(self.server.connect()) as connection, connection.cursor() as cursor:
            spare = self._take_spare(cursor, name)
            if spare != name:
                cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
                cursor.execute(f"ALTER DATABASE {spare} RENAME TO {name}" if spare else f"CREATE DATABASE {name}")
            if spare:
                cursor.execute(f"ALTER DATABASE {name} RESET ALL")
                cursor.execute(f"ALTER DATABASE {name} CONNECTION LIMIT -1")
        if spare:
            self.server.clear(name)
        self.used.add(name)
        return {**self.options, "postgresql.db": name}

    def _take_spare(self, cursor, name):
        """Return a database that nobody uses any more, without sessions; None if there is none."""
        cursor.execute("SELECT datname FROM pg_database")
        there = {row[0] for row in cursor.fetchall()}
        self._spare = [spare for spare in self._spare if spare in there]  # a test may have dropped it
        if not self._spare:
            return None
        spare = name if name in self._spare else self._spare[-1]
        self._spare.remove(spare)
        cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (spare,))
        return spare

    def give_back(self, names):
        """Let other callers get these databases, under other names. A new one takes a quarter of a second of CPU time."""
        self.used -= names
        self._spare += sorted(names - set(self._spare))


def postgresql_server(folder):
    _client("psycopg")
    from tests.postgresql import PostgreSQL

    server = PostgreSQL("fsync=off", "shared_buffers=16MB", "max_connections=200")
    atexit.register(server.remove)
    return PostgresqlServer(server)


def masters_key(folder, content=b"the private key of the masters"):
    """Options of a master that has this private key, in a folder of its own."""
    pki = pathlib.Path(folder) / "pki"
    pki.mkdir(parents=True, exist_ok=True)
    (pki / "master.pem").write_bytes(content)
    return {"pki_dir": str(pki)}


def driver_options(driver, servers, folder, request_tag):
    """
    Master options for ``driver``, with nothing stored there yet.

    servers
        A function that gives the started server of a driver.
    """
    own = {"cachedir": f"{folder}/cache", **masters_key(folder), "extension_modules": f"{folder}/ext"}
    os.makedirs(own["cachedir"])
    if driver in ("localfs", "sqlite"):
        return {**own, "cache": driver}
    if driver == "postgresql":
        return {**own, **servers(driver).make_database(f"t{request_tag}")}
    options = dict(servers(driver).options)
    if driver == "redis":
        options["cache.redis.db"] = str(request_tag % 16)
    elif driver == "mysql":
        options["mysql.table_name"] = f"t{request_tag}"
    elif driver == "etcd":
        options["etcd.path_prefix"] = f"/t{request_tag}"
    return {**own, **options}


DRIVERS = ("localfs", "sqlite", "postgresql", "redis", "mysql", "etcd")
SERVERS = {"postgresql": postgresql_server, "redis": redis_server, "mysql": mysql_server, "etcd": etcd_server}


def disk_usage(folder):
    """Bytes that the files below ``folder`` really take."""
    files = glob.glob(f"{folder}/**", recursive=True, include_hidden=True)
    return sum(os.lstat(name).st_blocks * 512 for name in files)


_RUNNING = {}


def _running(driver):
    """The running server of ``driver``: one for all modules, started when the first of them asks for it."""
    if driver not in _RUNNING:
        # In memory, if possible: nothing here has to outlive the machine.
        folder = tempfile.mkdtemp(prefix="sj-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _RUNNING[driver] = SERVERS[driver](folder)
        atexit.register(_RUNNING[driver].stop)
    if _RUNNING[driver].process is None:
        _RUNNING[driver].start()
    return _RUNNING[driver]


@contextlib.contextmanager
def databases_given_back():
    """Databases of the PostgreSQL server that are made within are given back."""
    server = _RUNNING.get("postgresql")
    before = set(server.used) if server else set()
    yield
    server = _RUNNING.get("postgresql")
    if server:
        server.give_back(server.used - before)


@pytest.fixture(scope="session")
def cache_servers():
    """A function that gives the running server of a driver."""
    return _running

"""
A real PostgreSQL server on a free loopback port, with the tables of Salt's pgjsonb returner.

It must not touch a server that it did not start. If PostgreSQL is missing, the tests that need it are skipped with the
reason. If ``CI`` is set, they fail.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import tempfile

import pytest

from tests.functional.cache_servers import free_port
from tests.missing import missing
from tests.waiting import SOON, stretched, wait_for

# The tables that the pgjsonb returner is documented to need.
SCHEMA = """
CREATE TABLE jids (jid varchar(255) NOT NULL PRIMARY KEY, load jsonb NOT NULL);
CREATE INDEX idx_jids_jsonb ON jids USING gin (load) WITH (fastupdate=on);
CREATE TABLE salt_returns (
  fun varchar(50) NOT NULL, jid varchar(255) NOT NULL, return jsonb NOT NULL, id varchar(255) NOT NULL,
  success varchar(10) NOT NULL, full_ret jsonb NOT NULL, alter_time timestamp with time zone DEFAULT now());
CREATE INDEX idx_salt_returns_id ON salt_returns (id);
CREATE INDEX idx_salt_returns_jid ON salt_returns (jid);
CREATE INDEX idx_salt_returns_fun ON salt_returns (fun);
CREATE INDEX idx_salt_returns_return ON salt_returns USING gin (return) WITH (fastupdate=on);
CREATE INDEX idx_salt_returns_full_ret ON salt_returns USING gin (full_ret) WITH (fastupdate=on);
CREATE SEQUENCE seq_salt_events_id;
CREATE TABLE salt_events (
  id bigint NOT NULL UNIQUE DEFAULT nextval('seq_salt_events_id'), tag varchar(255) NOT NULL, data jsonb NOT NULL,
  alter_time timestamp with time zone DEFAULT now(), master_id varchar(255) NOT NULL);
CREATE INDEX idx_salt_events_tag ON salt_events (tag);
CREATE INDEX idx_salt_events_data ON salt_events USING gin (data) WITH (fastupdate=on);
"""


def _program(name):
    places = sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([*places, os.environ.get("PATH", "")]))
    return found or missing(f"{name} (PostgreSQL) is not installed")


def _unprivileged():
    """The user of the server: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return missing("there is no user postgres or nobody to run PostgreSQL as")


class PostgreSQL:
    """
    Use ``start`` and ``stop`` as often as you like, and ``remove`` at the end.

    :param settings: ``name=value`` of the server's configuration, instead of those that make it fast and small.
    :param of: a server that runs, whose replica this one is to be.
    """

    def __init__(self, *settings, of=None):
        self.settings = settings or ("fsync=off", "shared_buffers=16MB")
        if importlib.util.find_spec("psycopg2") is None:
            missing("the Python module psycopg2 is not installed")
        self.initdb, self.postgres, self.user = _program("initdb"), _program("postgres"), _unprivileged()
        # In memory, if possible, where its files need not outlive the machine.
        in_memory = "fsync=off" in self.settings and os.access("/dev/shm", os.W_OK)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sj-pg-", dir="/dev/shm" if in_memory else None))
        self.port = free_port()
        self.process = None
        if self.user:
            os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)
        data = ["-D", f"{self.folder}/data", "--no-sync"]
        if of is not None:
            place = f"host=127.0.0.1 port={of.port} user=salt"
            self._run(
                [_program("pg_basebackup"), *data, "--write-recovery-conf", "--checkpoint=fast", "--dbname", place]
            )
        else:
            self._make_data(data)
        self.start()
        if of is None:
            self.make_tables()

    def _make_data(self, where):
        """Make the server's files, or copy those that another server of this run of the tests began with."""
        run = os.environ.get("SALTEXT_JOBS_RUN")
        begun = pathlib.Path(run) / "postgresql" if run else None
        if begun is not None and begun.exists():
            subprocess.run(["cp", "-a", begun, self.folder / "data"], check=True)
            return
        self._run([self.initdb, *where, "-U", "salt", "-A", "trust", "-E", "UTF8"])
        if begun is not None:
            draft = begun.with_name(f"postgresql.{os.getpid()}")
            subprocess.run(["cp", "-a", self.folder / "data", draft], check=True)
            with contextlib.suppress(OSError):  # another process was faster
                draft.rename(begun)

    @property
    def options(self):
        """What the pgjsonb returner needs in a master's configuration."""
        place = {"host": "127.0.0.1", "port": self.port, "user": "salt", "pass": "", "db": "postgres"}
        return {f"returner.pgjsonb.{name}": value for name, value in place.items()}

    def start(self):
        command = [self.postgres, "-D", f"{self.folder}/data", "-p", str(self.port), "-k", str(self.folder)]
        command += ["-c", "listen_addresses=127.0.0.1", *(f"--{item}" for item in self.settings)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **self._as_user()
            )
        self._await()

    def stop(self):
        """Stop it at once, as a crash would."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(stretched(SOON))
            self.process = None

    def promote(self, in_place_of):
        """This replica, which was stopped, becomes the server at the place of another one, which must be stopped too."""
        self.port = in_place_of.port
        self.start()
        self.execute("SELECT pg_promote()")

    def has_all_of(self, other):
        """Tell whether this replica has all that another server has written."""
        (written,), (replayed,) = (
            other.execute("SELECT pg_current_wal_lsn()"),
            self.execute("SELECT pg_last_wal_replay_lsn()"),
        )
        return written == replayed

    def remove(self):
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def connect(self, database="postgres"):
        import psycopg2

        connection = psycopg2.connect(host="127.0.0.1", port=self.port, user="salt", dbname=database)
        connection.autocommit = True
        return connection

    def execute(self, sql, *args, database="postgres"):
        """Run statements, and return the rows of the last one if it has any."""
        with contextlib.closing(self.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(sql, args)
            return cursor.fetchall() if cursor.description else None

    def returns(self):
        """Return sorted (jid, minion) of every row, twice if there are two."""
        return sorted(self.execute("SELECT jid, id FROM salt_returns"))

    def empty(self):
        self.execute("TRUNCATE jids, salt_returns")

    def make_tables(self):
        """Make the tables as Salt documents them."""
        self.execute(SCHEMA)

    def clear(self, database="postgres"):
        """Remove all tables."""
        anew = "DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO public"
        self.execute(anew, database=database)

    def _as_user(self):
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []} if self.user else {}

    def _run(self, command):
        subprocess.run(command, check=True, capture_output=True, timeout=stretched(SOON), cwd="/", **self._as_user())

    def _await(self):
        import psycopg2

        def log():
            return f"PostgreSQL answers: {(self.folder / 'log').read_text()[-2000:]}"

        def answers():
            if self.process.poll() is not None:
                pytest.fail(log())
            with contextlib.suppress(psycopg2.OperationalError):
                self.connect().close()
                return True
            return False

        wait_for(answers, what=log)

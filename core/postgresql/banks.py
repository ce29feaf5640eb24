"""
The banks of salt.cache in one table of PostgreSQL: ``cache: postgresql`` (cache/postgresql.py), the job cache and the queue.

It behaves like the driver localfs: a bank lists its keys and the banks in it; flushing a bank removes the banks below it
too; a missing key fetches ``{}``. A bank exists as long as anything is in it. An expired value counts as absent, by the
server's clock, which is the same for all masters. Each call writes everything or nothing.

It must never treat a temporary failure as a refusal: ``core/postgresql/trouble.py`` tells the two apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import salt.payload

from saltext.jobs.core.banks import LOADS, MINIONS, PUBLISHED, RETURNS, below, plain_bank
from saltext.jobs.core.disk import packed
from saltext.jobs.core.disk.job_lookup import CHUNK, parts
from saltext.jobs.core.disk.job_summary import has_failed, job_marks, shown_of
from saltext.jobs.core.postgresql import cache_tables
from saltext.jobs.core.postgresql.cache_tables import TABLE
from saltext.jobs.core.postgresql.connections import LONG, Connections, Patient
from saltext.jobs.core.postgresql.job_lookup import JobLookup
from saltext.jobs.core.postgresql.options import CacheOptions, read_cache_options

Result = TypeVar("Result")
Rows = list[tuple[Any, ...]]

_MOST_SERVERS = 8
_ALIVE = "(t.expires IS NULL OR t.expires > clock_timestamp())"
_VALUE = f"SELECT t.value FROM {TABLE} AS t WHERE t.bank = %s AND t.key = %s AND {_ALIVE}"
_AT = "extract(epoch FROM {})::float8"
#: Separates the ids of a list of minions on its way to the server: no id that Salt accepts contains it.
_BETWEEN = "/"

_SERVERS: dict[CacheOptions, Banks] = {}


def banks_of(opts: Mapping[str, Any]) -> Banks:
    """Return this process's banks on the server that a master's options name. :raises SettingsError: naming an option."""
    options = read_cache_options(opts)
    found = _SERVERS.get(options)
    if found is None:
        while len(_SERVERS) >= _MOST_SERVERS:
            _SERVERS.pop(next(iter(_SERVERS))).end()
        found = _SERVERS.setdefault(options, Banks(options))
    return found


class Banks:
    """:param options: where the server is."""

    loads = staticmethod(packed.loads)

    def __init__(self, options: CacheOptions) -> None:
        #: Finds and lists jobs.
        self.index = JobLookup(self.rows)
        self._connections = Connections(
            options, lambda connection: cache_tables.prepare(connection, bool(options.synchronous_commit))
        )

    def end(self) -> None:
        """Disconnect."""
        self._connections.end()

    # -- one value -------------------------------------------------------------------------------------------------

    def store(self, bank: str, key: str, value: Any, durable: bool = False, expires: float | None = None) -> None:
        """
        Store a value.

        :param durable: ignored: the server decides.
        :param expires: seconds after which it counts as absent.
        :raises Away: if the server cannot do it now; it may have been done.
        :raises Rejected: if it never will.
        """
        self.store_all([(bank, key, value)], durable, expires)

    def store_all(
        self, items: Sequence[tuple[str, str, Any]], durable: bool = False, expires: float | None = None
    ) -> None:
        """Store (bank, key, value) triples as a whole; for the same bank and key the last one counts."""
        rows = {(row.bank, row.key): row for row in (_Row(*item, expires) for item in items)}
        # in the order of all writers, so that they cannot deadlock
        parts = [rows[place].insert(replace=True) for place in sorted(rows)]
        *first, (last, values) = parts
        before = ", ".join(f"p{number} AS ({part})" for number, (part, _) in enumerate(first))
        query = f"WITH {before} {last}" if before else last
        self.run(lambda connection: _do(connection, query, [one for _, some in first for one in some] + values))

    def store_new(self, bank: str, key: str, value: Any, durable: bool = False) -> bool:
        """Store a value unless there is one. Returns whether it was stored."""
        row = _Row(bank, key, value, None)
        query, values = row.insert(replace=False)
        tries = 0

        def work(connection: Patient) -> bool:
            nonlocal tries
            tries += 1
            if _do(connection, f"{query} RETURNING 1", values):
                return True
            return tries > 1 and _do(connection, _VALUE, (row.bank, row.key)) == [(row.value,)]

        return self.run(work)

    def fetch(self, bank: str, key: str, default: Any = None) -> Any:
        """
        Return a value; if there is none, ``default`` or ``{}``.

        :raises Exception: anything that msgpack raises for a broken value.
        """
        found = self.rows(_VALUE, (plain_bank(bank), str(key)))
        if not found:
            return {} if default is None else default
        return packed.loads(found[0][0])

    def read_all(self, items: Sequence[tuple[str, str]]) -> list[bytes | None]:
        """Return the stored bytes of (bank, key) pairs, None for a missing one."""
        banks, keys = [plain_bank(bank) for bank, _ in items], [str(key) for _, key in items]
        # each pair by the index, whatever size the server assumes for the table
        query = f"""SELECT w.place, t.value FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS w (bank, key, place)
            CROSS JOIN LATERAL (
                SELECT t.value FROM {TABLE} AS t WHERE t.bank = w.bank AND t.key = w.key AND {_ALIVE} LIMIT 1) AS t"""
        found: dict[int, bytes] = dict(self.rows(query, (banks, keys)))
        return [found.get(place) for place in range(1, len(items) + 1)]

    def contains(self, bank: str, key: str | None = None) -> bool:
        """Tell whether there is a value; without a key, whether the bank exists."""
        name = plain_bank(bank)
        where, values = "(t.bank = %s OR (t.bank > %s AND t.bank < %s))", [name, *below(name)]
        if key is not None:
            where, values = f"t.bank = %s AND t.key = %s AND {_ALIVE}", [name, str(key)]
        return bool(self.rows(f"SELECT 1 FROM {TABLE} AS t WHERE {where} LIMIT 1", values))

    def updated(self, bank: str, key: str) -> float | None:
        """Return the Unix time of the last write, or None if there is no value."""
        query = f"SELECT {_AT.format('t.updated')} FROM {TABLE} AS t WHERE t.bank = %s AND t.key = %s AND {_ALIVE}"
        found = self.rows(query, (plain_bank(bank), str(key)))
        return found[0][0] if found else None

    def flush(self, bank: str, key: str | None = None) -> bool:
        """Remove a key; without one, the bank with everything in and below it. Returns whether there was anything."""
        name = plain_bank(bank)
        if key is not None:
            return self._deleted("bank = %s AND key = %s", (name, str(key))) > 0
        return self._deleted("bank = %s OR (bank > %s AND bank < %s)", (name, *below(name)), LONG) > 0

    def _deleted(self, where: str, values: Sequence[Any], seconds: float | None = None) -> int:
        query = f"DELETE FROM {TABLE} WHERE {where}".encode()
        return self.run(lambda connection: int(connection.execute(query, values).rowcount), seconds)

    # -- what there is ---------------------------------------------------------------------------------------------

    def keys(self, bank: str) -> list[str]:
        """Return the keys of a bank, in order."""
        query = f"SELECT t.key FROM {TABLE} AS t WHERE t.bank = %s AND {_ALIVE} ORDER BY t.key"
        return [row[0] for row in self.rows(query, (plain_bank(bank),))]

    def banks(self, bank: str) -> list[str]:
        """Return the names of the banks in a bank, in order."""
        name = plain_bank(bank)
        return self._banks_between(name, *below(name))

    def _banks_between(self, name: str, low: str, high: str) -> list[str]:
        # The index leads from each bank to the next, past all keys in it.
        query = f"""WITH RECURSIVE found AS (
                (SELECT t.bank FROM {TABLE} AS t WHERE t.bank >= %s AND t.bank < %s ORDER BY t.bank LIMIT 1)
                UNION ALL SELECT (SELECT t.bank FROM {TABLE} AS t WHERE t.bank > found.bank AND t.bank < %s
                    ORDER BY t.bank LIMIT 1) FROM found WHERE found.bank IS NOT NULL)
            SELECT bank FROM found WHERE bank IS NOT NULL"""
        rows, start = self.rows(query, (low, high, high), LONG), len(name) + 1
        return list(dict.fromkeys(str(row[0])[start:].partition("/")[0] for row in rows))

    def list(self, bank: str) -> list[str]:
        """Return the names in a bank: keys and sub-banks."""
        return [*dict.fromkeys((*self.keys(bank), *self.banks(bank)))]

    def outside(self, bank: str, low: str, high: str) -> Sequence[str]:
        """Return the keys of a bank that are before ``low`` or after ``high``."""
        query = f"SELECT t.key FROM {TABLE} AS t WHERE t.bank = %s AND t.key {{}} %s"
        name = plain_bank(bank)
        return [
            row[0]
            for edge in (("<", low), (">", high))
            for row in self.rows(query.format(edge[0]), (name, edge[1]), LONG)
        ]

    def banks_outside(self, bank: str, low: str, high: str) -> Sequence[str]:
        """As ``outside``, for the names of the banks in a bank."""
        name = plain_bank(bank)
        first, last = below(name)
        found = [*self._banks_between(name, first, f"{name}/{low}"), *self._banks_between(name, f"{name}/{high}", last)]
        return [each for each in dict.fromkeys(found) if not low <= each <= high]

    def items(self, bank: str) -> Iterator[tuple[str, bytes]]:
        """Yield the keys of a bank, in order, and their stored bytes; concurrent changes may show."""
        query = f"""SELECT t.key, t.value FROM {TABLE} AS t WHERE t.bank = %s AND t.key {{}} %s AND {_ALIVE}
            ORDER BY t.key LIMIT {CHUNK}"""
        name = plain_bank(bank)
        rows = self.rows(query.format(">="), (name, ""))
        while rows:
            yield from ((row[0], row[1]) for row in rows)
            rows = self.rows(query.format(">"), (name, rows[-1][0]))

    def pick(self, bank: str, keys: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield those of some keys that have a value, in the given order, with their stored bytes."""
        query = f"SELECT t.key, t.value FROM {TABLE} AS t WHERE t.bank = %s AND t.key = ANY(%s) AND {_ALIVE}"
        name = plain_bank(bank)
        for part in parts(list(keys)):
            found: dict[str, bytes] = dict(self.rows(query, (name, part)))
            yield from ((key, found[key]) for key in part if key in found)

    def present(self, bank: str, keys: Iterable[str]) -> set[str]:
        """Return those of some keys that have a value."""
        query = f"SELECT t.key FROM {TABLE} AS t WHERE t.bank = %s AND t.key = ANY(%s) AND {_ALIVE}"
        name = plain_bank(bank)
        return {row[0] for part in parts(list(keys)) for row in self.rows(query, (name, part))}

    def clean_expired(self, bank: str) -> int:
        """Remove the expired values of a bank, and return their number."""
        return self._deleted("bank = %s AND expires <= clock_timestamp()", (plain_bank(bank),), LONG)

    def count(self, bank: str) -> int:
        """Return how many keys a bank has, expired ones too."""
        return int(self.rows(f"SELECT count(*) FROM {TABLE} WHERE bank = %s", (plain_bank(bank),), LONG)[0][0])

    def count_below(self, bank: str) -> int:
        """Return how many keys the banks below a bank have, expired ones too."""
        query = f"SELECT count(*) FROM {TABLE} WHERE bank > %s AND bank < %s"
        return int(self.rows(query, below(plain_bank(bank)), LONG)[0][0])

    # -- old ones --------------------------------------------------------------------------------------------------

    def remove_older(self, banks: Sequence[str], parent: str, names: Sequence[str], than: float) -> None:
        """
        Remove the names that were last written before ``than``: their keys in some banks, and the bank ``parent/name``
        of each.

        All of one name is removed at once.

        :param than: Unix time.
        """
        self.run(lambda connection: _remove_older(connection, banks, parent, names, than), LONG)

    # -- asking the server -----------------------------------------------------------------------------------------

    def rows(self, query: str, values: Sequence[Any] = (), seconds: float | None = None) -> Rows:
        """Return the rows that a query finds. :raises Away, Rejected: as ``store``."""
        return self.run(lambda connection: _do(connection, query, values), seconds)

    def run(self, work: Callable[[Patient], Result], seconds: float | None = None) -> Result:
        """
        Call ``work`` with a connection. ``work`` is called again after a clash with others, if the server has closed the
        connection meanwhile, and while the server is being restarted.

        :param seconds: how long each statement may take, if longer than usual.
        :raises Away, Rejected: as ``store``.
        """
        return self._connections.run(work, seconds)


class _Row:
    """The row of one value, as :py:mod:`cache_tables` describes it."""

    def __init__(self, bank: str, key: str, value: Any, expires: float | None) -> None:
        self.bank, self.key = plain_bank(bank), str(key)
        self.value: bytes = salt.payload.dumps(value, use_bin_type=True)
        self._columns: dict[str, tuple[str, Any]] = {
            "bank": ("%s", self.bank),
            "key": ("%s", self.key),
            "value": ("%s", self.value),
        }
        if self.bank == LOADS:
            fun, user = job_marks(value)
            # A load stored after the record of its publish is checked against that record when it is listed.
            known = f"EXISTS (SELECT FROM {TABLE} WHERE bank = '{PUBLISHED}' AND key = %s)"
            marks = (_clean(fun), _clean(user))
            shown = shown_of(self.key, (fun, user), value) if marks == (fun, user) else None
            self._columns["shown"] = (f"CASE WHEN {known} THEN NULL ELSE %s::bytea END", (self.key, shown))
            self._columns.update(fun=("%s", marks[0]), usr=("%s", marks[1]))
        elif self.bank == MINIONS:
            self._columns["minions"] = (f"string_to_array(%s, '{_BETWEEN}')", _joined(value))
        elif self.bank.startswith(f"{RETURNS}/"):
            self._columns["failed"] = ("%s", has_failed(value))
        until = None if expires is None else float(expires)
        self._columns["expires"] = ("clock_timestamp() + %s * interval '1 second'", until)

    def insert(self, replace: bool) -> tuple[str, list[Any]]:
        """Return the statement and its values. It replaces an existing row, or only an expired one."""
        names = ", ".join(self._columns)
        marks = ", ".join(mark for mark, _ in self._columns.values())
        values: list[Any] = []
        for _, value in self._columns.values():
            values += value if isinstance(value, tuple) else (value,)
        new = ", ".join(f"{name} = EXCLUDED.{name}" for name in self._columns if name not in ("bank", "key"))
        only = "" if replace else " WHERE t.expires <= clock_timestamp()"
        return (
            f"INSERT INTO {TABLE} AS t ({names}) VALUES ({marks}) ON CONFLICT (bank, key) DO UPDATE SET "
            f"updated = clock_timestamp(), {new}{only}",
            values,
        )


def _remove_older(connection: Patient, banks: Sequence[str], parent: str, names: Sequence[str], than: float) -> None:
    shared, own = list(banks), [f"{parent}/{name}" for name in names]
    with connection.transaction():
        # from here on other writers of these rows wait, and the next statement sees all earlier writes
        lock = f"SELECT 1 FROM {TABLE} WHERE bank = ANY(%s) AND key = ANY(%s) ORDER BY bank, key FOR UPDATE"
        _do(connection, lock, (shared, list(names)))
        last = f"""greatest((SELECT max(updated) FROM {TABLE} WHERE bank = ANY(%s) AND key = w.name),
            (SELECT max(updated) FROM {TABLE} WHERE bank = w.own))"""
        query = f"SELECT w.name, {_AT.format(last)} FROM unnest(%s::text[], %s::text[]) AS w (name, own)"
        ages = _do(connection, query, (shared, list(names), own))
        old = [name for name, at in ages if at is not None and at < than]
        if old:
            _do(connection, f"DELETE FROM {TABLE} WHERE bank = ANY(%s) AND key = ANY(%s)", (shared, old))
            _do(connection, f"DELETE FROM {TABLE} WHERE bank = ANY(%s)", ([f"{parent}/{name}" for name in old],))


def _do(connection: Patient, query: str, values: Sequence[Any] = ()) -> Rows:
    with connection.cursor(binary=True) as cursor:
        cursor.execute(query.encode(), values)
        return cursor.fetchall() if cursor.description else []


def _clean(text: str) -> str:
    """Return a function or a user as a text that can be stored: what a minion sends may hold anything."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def _joined(value: Any) -> str | None:
    if not isinstance(value, (list, tuple)) or not set(map(type, value)) <= {str}:
        return None
    joined = _BETWEEN.join(value)
    is_certain = joined.count(_BETWEEN) == max(0, len(value) - 1) and "" not in value and "\0" not in joined
    return joined if is_certain else None

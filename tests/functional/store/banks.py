"""The tables of ``cache: sqlite`` or ``postgresql``, below the driver."""

from __future__ import annotations

import functools

from saltext.jobs.core.ledger import values
from saltext.jobs.core.ledger.tables import LOG, VALUES
from saltext.jobs.core.sqlite import tables


class Banks:
    """The functions of ``core/ledger/values.py``, for one database."""

    def __init__(self, its_tables):
        self.tables = its_tables

    def __getattr__(self, name):
        return functools.partial(getattr(values, name), self.tables)

    def transaction(self):
        return self.tables.database.transaction()

    def damaged(self):
        return self.tables.database.damaged()

    def is_sound(self):
        return self.tables.database.damage() is None

    def read_everything(self):
        """:raises OSError: if it is damaged; it has been set aside then."""
        for table in (VALUES, LOG):
            self.tables.read(f"SELECT * FROM {table}")
        self.tables.read(f"SELECT bank, key FROM {VALUES} ORDER BY bank, key")


def banks_of(opts):
    if opts["cache"] == "sqlite":
        return Banks(tables.SqliteTables(opts))
    from saltext.jobs.core.postgresql.tables import PostgresqlTables  # psycopg is an extra

    return Banks(PostgresqlTables(opts))

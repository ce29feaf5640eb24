"""The drivers cache/sqlite.py and cache/postgresql.py of ``salt.cache``: short functions; ``values.py`` does the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from salt.exceptions import SaltCacheError

from saltext.jobs.core.banks import plain_bank
from saltext.jobs.core.errors import JobsError
from saltext.jobs.core.ledger import stored, values
from saltext.jobs.core.ledger.tables import Tables


def functions(module: str, driver: str, tables_of: Callable[..., Tables]) -> dict[str, Callable[..., Any]]:
    """
    Return the functions of a driver, by name. ``module``: that of the driver, since Salt's loader takes no functions of
    others. ``tables_of`` takes the ``cachedir`` that Salt passes on from ``init_kwargs``, and a bank; it returns tables.
    """

    def do(what: str, call: Callable[..., Any], cachedir: str | None, bank: str, *args: Any) -> Any:
        try:
            plain = plain_bank(bank)
            return call(tables_of(cachedir, plain), plain, *args)
        except (JobsError, OSError, ValueError, TypeError, OverflowError) as exc:
            key = args[0] if args else None
            raise SaltCacheError(
                f"The cache driver {driver} could not {what} bank={bank!r} key={key!r}: {exc}"
            ) from exc

    def store(bank: str, key: str, data: Any, cachedir: str | None = None, expires: float | None = None) -> None:
        """Store ``data``, anything that Salt's serializer takes. After ``expires`` seconds it counts as absent."""
        do("store", values.store, cachedir, bank, str(key), data, expires or None)

    def fetch(bank: str, key: str, cachedir: str | None = None) -> Any:
        """Return the value; ``{}`` if there is none."""
        return do("fetch", values.fetch, cachedir, bank, str(key))

    def updated(bank: str, key: str, cachedir: str | None = None) -> int | None:
        """Return the Unix time of the last write, in whole seconds; None if there is no value."""
        found = do("updated", values.updated, cachedir, bank, str(key))
        return None if found is None else int(found)

    def flush(bank: str, key: str | None = None, cachedir: str | None = None) -> bool:
        """Remove a key; without a key, the bank and everything below it. Return whether anything was removed."""
        return bool(do("flush", values.flush, cachedir, bank, key if key is None else str(key)))

    def list_(bank: str, cachedir: str | None = None) -> list[str]:
        """Return the names of the keys and the banks in ``bank``."""
        return list(do("list", values.names, cachedir, bank))

    def list_all(bank: str, cachedir: str | None = None, include_data: bool = False) -> dict[str, Any]:
        """Return ``{key: value}`` of a bank. Values cost next to nothing, so ``include_data`` is ignored."""

        def found(*place: Any) -> dict[str, Any]:
            return {key: stored.loads(value) for key, value in values.items(*place)}

        return dict(do("list", found, cachedir, bank))

    def contains(bank: str, key: str | None = None, cachedir: str | None = None) -> bool:
        """Tell whether the key has a value; without a key, whether the bank exists."""
        return bool(do("contains", values.contains, cachedir, bank, key if key is None else str(key)))

    def clean_expired(bank: str, cachedir: str | None = None) -> None:
        """Remove the expired values of a bank."""
        do("clean", values.clean_expired, cachedir, bank)

    made = (store, fetch, updated, flush, list_, list_all, contains, clean_expired)
    for function in made:
        function.__module__ = module
    return {function.__name__: function for function in made}

"""The database of ``cache: sqlite``: one file for the job cache and the retry queue."""

#: The options of a master that say where it is and how it is written, and that it is used.
OPTIONS = ("cache", "cachedir", "sqlite_cache_path", "sqlite_cache_synchronous")

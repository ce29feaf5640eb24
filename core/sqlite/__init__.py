"""The database of ``cache: sqlite``: one file for the job cache and the retry queue."""

#: The options of a master that select this database, and say where its file is and how it is written.
OPTIONS = ("cache", "cachedir", "sqlite_cache_path")

"""The database of ``cache: sqlite``: one file for the job cache and the retry queue."""

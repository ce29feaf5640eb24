"""What a minion gets from the master: the folder for ``file_roots``."""

"""The folder for ``file_roots``, from which minions get the executor."""

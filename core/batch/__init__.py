"""Asynchronous batches: the machine, its facts, its effects, and the shell that carries these out."""

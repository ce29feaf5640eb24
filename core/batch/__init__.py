"""Asynchronous batches: the machine, what it is told, what it wants done, and the shell that carries it out."""

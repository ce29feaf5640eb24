"""The log of what this master itself has done: its publishes, and the returns that it has stored, in order."""

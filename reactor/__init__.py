"""SLS files an operator points ``reactor:`` at."""

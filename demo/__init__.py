"""What ``make demo`` shows: the extension at work, on a real master and four real minions in a temporary directory."""

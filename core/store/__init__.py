"""The job cache's own parts: keys, the cache drivers and how they differ, what is written, listed and removed."""

"""The job cache's own parts: keys, cache drivers and how they differ, and what is written, listed and removed."""

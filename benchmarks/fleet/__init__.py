"""Proof at fleet scale: a real master, and as many featherweight minions as it takes."""

"""Loads and returns from the log and the job cache, into any returner."""

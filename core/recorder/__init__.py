"""Loads and returns from the bus, through a spool on disk, into any returner."""

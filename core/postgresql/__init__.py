"""Loads, returns and events into the tables of Salt's pgjsonb returner, many at a time."""

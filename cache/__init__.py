"""Drivers for salt.cache."""

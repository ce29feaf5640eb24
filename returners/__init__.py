"""Job caches."""

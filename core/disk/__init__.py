"""All that touches the disk directly: private files, the lock of an engine."""

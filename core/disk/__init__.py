"""All that touches the disk directly: private files, the recorder's spool, localfs banks."""

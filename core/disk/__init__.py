"""All that touches the disk directly: private files, a batch's journal, the recorder's spool, localfs banks."""

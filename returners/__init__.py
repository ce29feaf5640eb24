"""The job cache ``salt_cache``, and ``pgjsonb_bulk`` for the recorder."""

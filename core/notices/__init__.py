"""Tells people, where they are, what became of batches: by a webhook, and by Salt's own returners."""

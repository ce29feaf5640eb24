"""Sends notices about batches and engines to people: by a webhook, and by Salt's own returners."""

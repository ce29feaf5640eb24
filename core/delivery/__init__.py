"""One job on one minion: where it stands, what is known of it, and what that means. Batches and the retry queue share it."""

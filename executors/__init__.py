"""Long-running processes of the Salt master."""

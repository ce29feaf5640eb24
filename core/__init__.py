"""What engines, runners and returners are built from: one wing per engine, and adapters to Salt and the disk."""

"""What engines, runners and returners are built from: three wings, and the adapters to Salt's master and to the disk."""

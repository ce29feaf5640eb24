"""What every engine is built on: its process, its requests, its threads."""

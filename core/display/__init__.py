"""What people read: text that is safe on a terminal, tables that fit it, times. It decides nothing about jobs."""

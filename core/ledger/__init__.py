"""What outlives the engines and the master's workers: tables in SQLite, or in PostgreSQL for masters that work as one."""

"""What talks to PostgreSQL: the banks of ``cache: postgresql``, the recorder's tables, and a site of masters."""

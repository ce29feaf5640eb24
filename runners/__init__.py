"""What an operator types after ``salt-run``."""

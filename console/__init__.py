"""A page for the browser, in files that salt-api serves: see docs/console.md. There is no Python in it."""

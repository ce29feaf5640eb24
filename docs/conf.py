"""Sphinx's configuration: ``pip install -e '.[docs]'``, then ``sphinx-build docs docs/_build``."""

project = "saltext-jobs"
author = "the saltext-jobs developers"
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["_build"]
# The README is linked for those who read these pages in the repository.
suppress_warnings = ["myst.xref_missing"]

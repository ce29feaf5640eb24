"""Sphinx's configuration: ``make docs``."""

import pathlib
import sys

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

from package import __version__  # noqa: E402

project = "saltext-jobs"
author = "the saltext-jobs developers"
copyright = author
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "docs.generated"]
html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["_static"]
html_css_files = ["options.css"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"

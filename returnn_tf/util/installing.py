"""How to install what an optional part of the program needs, for the way in which the program itself is installed."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex

_DISTRIBUTION = "returnn-tf"
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def install_command(extra: str = "", *, options: str = "", root: str = _ROOT) -> str:
    """Return the command that installs the packages of an extra.

    In a checkout this is the extra of the checkout. Elsewhere the packages are named themselves, as recorded when the
    program was installed: there need not be an index that has the program under its name.

    :param extra: as in pyproject.toml, e.g. "audio"; "" for what is always required
    :param options: for pip
    :param root: the folder of the package
    """
    pip = "pip install " + options + (options and " ")
    if os.path.isfile(os.path.join(root, "pyproject.toml")):
        return pip + "-e " + shlex.quote(root + (extra and "[%s]" % extra))
    packages = packages_of(extra)
    if not packages:
        return "install the packages of %s in the pyproject.toml of returnn_tf" % (extra or "dependencies")
    return pip + " ".join(shlex.quote(package) for package in packages)


def packages_of(extra: str) -> list[str]:
    """Return the packages of an extra, with the ranges of their versions; empty if the program was only copied."""
    try:
        requirements = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = []
    for requirement in requirements:
        package, _, marker = requirement.partition(";")
        of = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", marker)
        if (of.group(1) if of else "") == extra:
            found.append(package.strip().replace(" ", ""))
    return found

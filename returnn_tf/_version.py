"""The version of this package: in a checkout the next one, in a wheel or sdist its own, which setup.py writes here."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

__version__ = "0.2.0"

#: What `git describe --long --dirty` prints for a tag of a release: v1.2.3-N-gHASH, with -dirty for changed files.
_DESCRIBED = re.compile(r"v(?P<release>\d+\.\d+\.)(?P<patch>\d+)-(?P<commits>\d+)-(?P<commit>g\w+)(?P<dirty>-dirty)?")


def version_of_commit() -> str:
    """Return the version of a distribution that is built from here; in an installation its own.

    A release is a commit with the tag ``v1.2.3``, and N commits later it is ``1.2.4.devN+gHASH``. Before the first tag,
    or in a clone without tags, it is ``.devN+gHASH`` of the version above.

    :raises OSError: there is no git
    :raises subprocess.CalledProcessError: git can't read the repository
    """
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return __version__
    described = _git(root, "describe", "--tags", "--match", "v[0-9]*", "--long", "--dirty", "--always")
    tag = _DESCRIBED.fullmatch(described)
    if tag is None:  # without a tag: the hash alone
        commit, _, dirty = described.partition("-")
        count = _git(root, "rev-list", "--count", "HEAD")
        return "%s.dev%s+g%s%s" % (__version__, count, commit, dirty and ".dirty")
    if tag["commits"] == "0" and not tag["dirty"]:
        return tag["release"] + tag["patch"]
    local = tag["commit"] + (".dirty" if tag["dirty"] else "")
    return "%s%d.dev%s+%s" % (tag["release"], int(tag["patch"]) + 1, tag["commits"], local)


def shown_version() -> str:
    """Return the version for people: that of the commit, or that of the next release where git can't tell."""
    try:
        return version_of_commit()
    except (OSError, subprocess.SubprocessError):
        return __version__


def _git(folder: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "--no-optional-locks", *args], cwd=folder, capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.strip()

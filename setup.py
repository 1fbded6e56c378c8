"""The build steps that pyproject.toml cannot express: the version from git, and folders that stand beside the package.

A release is a commit with the tag ``v1.2.3``; nothing has to be edited for one. What is built from it is 1.2.3. N
commits later it is ``1.2.4.devN+gHASH``, and before the first tag, or in a clone without tags, ``.devN+gHASH`` of the
version in ``_version.py``. Each distribution has its version written in its own copy of that file, which is what counts
where there is no repository: in an sdist.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

CHECKOUT = Path(__file__).resolve().parent
VERSION_FILE = "returnn_tf/_version.py"
#: Folders that a wheel has inside of the package, and the suffixes of their files.
FOLDERS = {"native_ops": (".h", ".cc", ".cu"), "i6": (".py",)}
ASSIGNMENT = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
#: What `git describe --long --dirty` prints for a tag of a release: v1.2.3-N-gHASH, with -dirty for changed files.
DESCRIBED = re.compile(r"v(?P<release>\d+\.\d+\.)(?P<patch>\d+)-(?P<commits>\d+)-(?P<commit>g\w+)(?P<dirty>-dirty)?")


def find_version() -> str:
    """Return the version of what is built from this folder."""
    found = ASSIGNMENT.search((CHECKOUT / VERSION_FILE).read_text(encoding="utf8"))
    if found is None:
        raise SystemExit("setup.py: there is no version in %s" % VERSION_FILE)
    if not (CHECKOUT / ".git").exists():
        return found.group(1)
    try:
        described = git("describe", "--tags", "--match", "v[0-9]*", "--long", "--dirty", "--always")
        tag = DESCRIBED.fullmatch(described)
        if tag is None:  # without a tag: the hash alone
            commit, _, dirty = described.partition("-")
            return "%s.dev%s+g%s%s" % (found.group(1), git("rev-list", "--count", "HEAD"), commit, dirty and ".dirty")
    except (OSError, subprocess.CalledProcessError) as exc:
        reason = (getattr(exc, "stderr", "") or str(exc)).strip()
        print("setup.py: no version from git (%s), so it is that of %s" % (reason, VERSION_FILE), file=sys.stderr)
        return found.group(1)
    if tag["commits"] == "0" and not tag["dirty"]:
        return tag["release"] + tag["patch"]
    local = tag["commit"] + (".dirty" if tag["dirty"] else "")
    return "%s%d.dev%s+%s" % (tag["release"], int(tag["patch"]) + 1, tag["commits"], local)


def git(*args: str) -> str:
    """Run git in this folder and return its output."""
    done = subprocess.run(["git", *args], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def write_version(folder: str, version: str) -> None:
    """Write the version into a distribution's copy of the file, which may be a hard link to that of the checkout."""
    path = Path(folder, VERSION_FILE)
    text = path.read_text(encoding="utf8")
    path.unlink()
    path.write_text(ASSIGNMENT.sub('__version__ = "%s"' % version, text), encoding="utf8")


class SdistWithVersion(sdist):
    """Write the version into the sdist."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Collect the files, then write the version into its copy of them."""
        super().make_release_tree(base_dir, files)
        write_version(base_dir, self.distribution.get_version())


class BuildWithFolders(build_py):
    """Add what a checkout has beside the package: the native sources, and the folder that job managers name."""

    def run(self) -> None:
        """Build from nothing, as what an earlier build left would be in the wheel; then copy the folders."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            write_version(self.build_lib, self.distribution.get_version())
            for folder, suffixes in FOLDERS.items():
                for path in sorted(p for p in (CHECKOUT / folder).rglob("*.*") if p.suffix in suffixes):
                    to = Path(self.build_lib, "returnn_tf", path.relative_to(CHECKOUT))
                    to.parent.mkdir(parents=True, exist_ok=True)
                    script = CHECKOUT / "tools" / path.name  # those of a checkout's i6/tools only run these
                    shutil.copyfile(script if path.parent.name == "tools" else path, to)


setup(version=find_version(), cmdclass={"build_py": BuildWithFolders, "sdist": SdistWithVersion})

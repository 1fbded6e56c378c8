"""The build steps that pyproject.toml cannot express: the version from git, and folders that stand beside the package.

A release is a commit with the tag ``v1.2.3``; nothing has to be edited for one. ``_version.py`` has the version between
releases. Each distribution has its version written in its own copy of that file, which is what counts where there is no
repository: in an sdist.
"""

from __future__ import annotations

import re
import runpy
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
RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)\s]+)\)")
ASSIGNMENT = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)


def find_version() -> str:
    """Return the version of what is built from this folder."""
    known = runpy.run_path(str(CHECKOUT / VERSION_FILE))
    try:
        return str(known["version_of_commit"]())
    except (OSError, subprocess.SubprocessError) as exc:
        reason = (getattr(exc, "stderr", "") or str(exc)).strip()
        print("setup.py: no version from git (%s), so it is that of %s" % (reason, VERSION_FILE), file=sys.stderr)
        return str(known["__version__"])


def description() -> str:
    """Return the README with relative links as texts: they lead nowhere outside of the repository."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf8")
    return RELATIVE_LINK.sub(lambda m: m[1] if m[2].startswith(m[1].strip("`")) else "%s (`%s`)" % m.groups(), text)


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


setup(
    version=find_version(),
    long_description=description(),
    long_description_content_type="text/markdown",
    cmdclass={"build_py": BuildWithFolders, "sdist": SdistWithVersion},
)

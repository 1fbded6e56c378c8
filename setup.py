"""The build steps that pyproject.toml cannot express: version, archive of files that are no modules, size of the wheel.

A release is a commit with the tag ``v1.2.3``; nothing has to be edited for one. What is built from it is 1.2.3. N
commits later it is ``1.2.4.devN+gHASH``, and before the first tag, or in a clone without tags, ``.devN+gHASH`` of the
version in ``_version.py``. Each distribution has its version written in its own copy of that file, which is what counts
where there is no repository: in an sdist.
"""

from __future__ import annotations

import importlib.util
import io
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

CHECKOUT = Path(__file__).resolve().parent
VERSION_FILE = "returnn_tf/_version.py"
ARCHIVE = "returnn_tf/files.tar.xz"
ASSIGNMENT = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
LITERAL_OR_COMMENT = re.compile(rb'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)
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


def packed_files() -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files of the archive, in the order of their names.

    These are the native sources, which are compiled on the user's machine; the folder ``i6`` with the scripts that it
    names, which ``returnn-tf root`` writes; pages of ``returnn-tf explain`` and configs of ``returnn-tf new``.
    """
    for folder in ("i6", "native_ops", "returnn_tf/cli"):
        for path in sorted((CHECKOUT / folder).rglob("*.*")):
            name = path.relative_to(CHECKOUT).as_posix()
            if path.suffix in (".h", ".cc", ".cu"):
                yield name, without_comments(path.read_bytes())
            elif folder == "returnn_tf/cli":
                if path.suffix in (".config", ".md"):
                    yield name, path.read_bytes()
            elif path.suffix == ".py":
                script = CHECKOUT / "tools" / path.name  # of a checkout, i6/tools has links to it, or short forms
                yield name, (script if path.parent.name == "tools" else path).read_bytes()


def without_comments(code: bytes) -> bytes:
    """Return C++ code without comments and indentation, with the same line numbers."""
    code = LITERAL_OR_COMMENT.sub(lambda m: m[0] if m[0][:1] in b"\"'" else b" " + b"\n" * m[0].count(b"\n"), code)
    return re.sub(rb"(?m)[ \t]+$|^[ \t]+", b"", code)


def write_archive(to: Path) -> None:
    """Write the archive, the same bytes from the same files."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "lp": 0, "pb": 0}]  # pb=0: text
    with lzma.open(to, "wb", filters=filters) as out, tarfile.open(fileobj=out, mode="w|") as tar:
        for name, content in packed_files():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


class BuildWithFolders(build_py):
    """Add what a checkout has beside the package, in the archive that ``returnn_tf/util/packed_files.py`` reads."""

    def run(self) -> None:
        """Build from nothing, as what an earlier build left would be in the wheel; then write the archive."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            write_version(self.build_lib, self.distribution.get_version())
            write_archive(Path(self.build_lib, ARCHIVE))


class SmallWheel(bdist_wheel):
    """Compress the wheel anew, better than Python's zipfile can."""

    def run(self) -> None:
        """Build the wheel, then compress it, if the package for that is there."""
        super().run()
        if importlib.util.find_spec("deflate") is None:
            print("setup.py: the wheel is larger without the package deflate", file=sys.stderr)
            return
        for command, _, wheel in self.distribution.dist_files:
            if command == "bdist_wheel":
                subprocess.run([sys.executable, str(CHECKOUT / "release" / "compress.py"), wheel], check=True)


COMMANDS = {"build_py": BuildWithFolders, "sdist": SdistWithVersion, "bdist_wheel": SmallWheel}

setup(version=find_version(), cmdclass=COMMANDS)

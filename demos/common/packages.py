"""Debian packages as sources of data: fetched with apt-get, unpacked without installing them and without root."""

from __future__ import annotations

import glob
import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

FILE_NAME = re.compile(r"(?P<name>[a-z0-9][a-z0-9+.-]+)_(?P<version>[^_]+)_(?P<architecture>[a-z0-9-]+)\.deb")
_AR_MAGIC = b"!<arch>\n"


class PackageError(Exception):
    """A package can't be fetched or unpacked; the message says what to do."""


class Package(NamedTuple):
    """An unpacked package.

    :param version: as in the name of its file
    :param sha256: of its file
    :param folder: its files, as they would lie below /
    """

    name: str
    version: str
    sha256: str
    folder: str

    @property
    def copyright(self) -> str:
        """The path of its file of licences."""
        return os.path.join(self.folder, "usr", "share", "doc", self.name, "copyright")


def fetch(names: Iterable[str], cache: str) -> dict[str, Package]:
    """Return packages by name; those that are not in the cache yet are downloaded and unpacked.

    A file that was put into the cache by hand is taken as one that was downloaded. Of several versions the newest file
    is taken.

    :param cache: folder of the files, NAME_VERSION_ARCHITECTURE.deb, and of what is in them, NAME_VERSION
    :raises PackageError: apt-get is missing, finds no such package or can't reach its archive; a file is damaged
    """
    os.makedirs(cache, exist_ok=True)
    return {name: _unpacked(name, _file_of(name, cache) or _download(name, cache), cache) for name in names}


def _file_of(name: str, cache: str) -> str:
    paths = glob.glob(os.path.join(glob.escape(cache), glob.escape(name) + "_*.deb"))
    return max(
        (path for path in paths if FILE_NAME.fullmatch(os.path.basename(path))), key=os.path.getmtime, default=""
    )


def _by_hand(name: str, cache: str) -> str:
    return (
        "without apt-get: download the package from https://packages.debian.org/%s, and put the .deb file into %s"
        % (
            name,
            os.path.abspath(cache),
        )
    )


def _download(name: str, cache: str) -> str:
    if shutil.which("apt-get") is None:
        raise PackageError("package %s: apt-get is not installed here; %s" % (name, _by_hand(name, cache)))
    # apt-get writes under the final name while it downloads, so that an interrupted one would be taken for a whole file
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        command = ["apt-get", "download", name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        path = _file_of(name, folder)
        if done.returncode or not path:
            errors = [line[2:].strip() for line in done.stderr.splitlines() if line.startswith("E:")]
            reason = "; ".join(errors) or "exit code %d" % done.returncode
            hint = "if its lists are old or missing: apt-get update, as root; " + _by_hand(name, cache)
            raise PackageError("package %s: apt-get download failed (%s); %s" % (name, reason, hint))
        return shutil.move(path, cache)


def _unpacked(name: str, path: str, cache: str) -> Package:
    found = FILE_NAME.fullmatch(os.path.basename(path))
    assert found, path
    folder = os.path.join(cache, "%s_%s" % (name, found["version"]))
    if not os.path.isdir(folder):
        # moved when it is complete: an interrupted run leaves nothing that looks unpacked
        with tempfile.TemporaryDirectory(dir=cache) as parent:
            partial = os.path.join(parent, "files")
            os.mkdir(partial)
            _unpack(path, partial)
            os.rename(partial, folder)
    return Package(name, found["version"], sha256_of(path), folder)


def sha256_of(path: str) -> str:
    """Return the checksum of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _unpack(path: str, folder: str) -> None:
    damaged = "%s: cannot be unpacked (%%s); delete it, then it is downloaded again" % path
    if shutil.which("dpkg-deb"):
        command = ["dpkg-deb", "--extract", path, folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PackageError(damaged % (done.stderr.strip() or "exit code %d" % done.returncode))
        return
    try:
        with open(path, "rb") as file:
            members = dict(_ar_members(file))
        content = next((name for name in members if name.startswith("data.tar")), None)
        if content is None:
            raise PackageError(damaged % "no data.tar in it")
        if content.endswith(".zst"):
            raise PackageError("%s: is compressed with zstd, which needs dpkg-deb: install dpkg" % path)
        with tarfile.open(fileobj=io.BytesIO(members[content])) as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extractall(folder, filter="data")
            else:  # Python 3.9 before 3.9.17
                archive.extractall(folder)
    except (ValueError, EOFError, tarfile.TarError) as exc:
        raise PackageError(damaged % exc) from None


def _ar_members(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the members of an ar archive, the container of a package (man 5 ar)."""
    if file.read(len(_AR_MAGIC)) != _AR_MAGIC:
        raise ValueError("not an ar archive")
    while True:
        header = file.read(60)
        if not header:
            return
        if len(header) < 60 or header[58:] != b"`\n":
            raise ValueError("damaged ar archive")
        size = int(header[48:58])
        content = file.read(size)
        if len(content) < size:
            raise ValueError("ends too early")
        if size % 2:
            file.read(1)
        yield header[:16].decode("ascii").strip().rstrip("/"), content


def data_card(packages: Iterable[Package]) -> str:
    """Return a table of packages in Markdown: versions, checksums, and where their licences are."""
    lines = ["| package | version | sha256 | licence |", "|---|---|---|---|"]
    lines += ["| %s | %s | %s | %s |" % (p.name, p.version, p.sha256, p.copyright) for p in packages]
    return "\n".join(lines) + "\n"

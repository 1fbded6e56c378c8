"""Debian packages as data of demos: fetched by apt-get or by hand, unpacked with and without dpkg-deb."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from tests.demos.demo_modules import demo_modules


@pytest.fixture(scope="module")
def packages():
    return demo_modules("common", "packages")[0]


def deb(files: dict[str, str], compression: str = "xz") -> bytes:
    """Return a package with these files."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:" + compression) as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo("./" + name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": gzip.compress(b"x"),
        "data.tar." + compression: data.getvalue(),
    }
    content = b"!<arch>\n"
    for name, value in members.items():
        content += b"%-16s%-12d%-6d%-6d%-8s%-10d`\n" % (name.encode(), 0, 0, 0, b"100644", len(value))
        content += value + b"\n" * (len(value) % 2)
    return content


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Return a function that makes shell scripts the only programs there are."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def add(**scripts: str) -> None:
        for name, text in scripts.items():
            path = folder / name.replace("_", "-")
            path.write_text("#!/bin/sh\n" + text)
            path.chmod(0o755)

    return add


def test_fetched_once(packages, programs, tmp_path):
    (tmp_path / "served.deb").write_bytes(deb({"usr/share/words": "ahoj"}))
    calls = tmp_path / "calls"
    programs(apt_get='echo "$@" >> %s\n/bin/cp %s "$2_1.0%%3a2-1_all.deb"\n' % (calls, tmp_path / "served.deb"))
    cache = tmp_path / "cache"
    for _ in range(2):
        package = packages.fetch(["words-cs"], str(cache))["words-cs"]
        assert Path(package.folder, "usr/share/words").read_text() == "ahoj"
    assert calls.read_text() == "download words-cs\n"
    assert package.version == "1.0%3a2-1"
    assert package.sha256 == hashlib.sha256((tmp_path / "served.deb").read_bytes()).hexdigest()
    assert sorted(os.listdir(cache)) == ["words-cs_1.0%3a2-1", "words-cs_1.0%3a2-1_all.deb"]
    card = packages.data_card([package])
    assert package.sha256 in card and "usr/share/doc/words-cs/copyright" in card


def test_put_there_by_hand(packages, programs, tmp_path):
    """Without apt-get and dpkg-deb; packages whose names begin with that name are other ones."""
    for name, text in (("words", "a"), ("words-cs", "b")):
        (tmp_path / ("%s_1_all.deb" % name)).write_bytes(deb({"x": text}, "gz"))
    package = packages.fetch(["words"], str(tmp_path))["words"]
    assert Path(package.folder, "x").read_text() == "a"


def test_dpkg_deb(packages, programs, tmp_path):
    """Where it is there, it unpacks."""
    programs(dpkg_deb='echo "$1" > "$3/x"')
    (tmp_path / "words_1_all.deb").write_bytes(deb({"x": "a"}))
    assert Path(packages.fetch(["words"], str(tmp_path))["words"].folder, "x").read_text() == "--extract\n"


def test_without_apt_get(packages, programs, tmp_path):
    with pytest.raises(
        packages.PackageError, match=r"apt-get is not installed.*packages.debian.org/words.*%s" % tmp_path
    ):
        packages.fetch(["words"], str(tmp_path))


@pytest.mark.parametrize(
    "error",
    ["E: Unable to locate package words", "W: a warning\nE: Failed to fetch http://x  Could not resolve 'x'"],
    ids=["unknown", "offline"],
)
def test_apt_get_fails(packages, programs, tmp_path, error):
    """What it says is told, and an unfinished file is not taken for a package later."""
    programs(apt_get="echo half > words_1_all.deb\n/bin/cat >&2 <<'E'\n%s\nE\nexit 100\n" % error)
    reason = error.rsplit("E: ", 1)[1]
    with pytest.raises(packages.PackageError, match=r"\(%s\).*apt-get update" % reason):
        packages.fetch(["words"], str(tmp_path / "cache"))
    assert os.listdir(tmp_path / "cache") == []


@pytest.mark.parametrize(
    "content, message",
    [
        (b"<html>", "not an ar archive"),
        (deb({"x": "a"})[:-40], "ends too early"),
        (deb({"x": "a"}).replace(b"data.tar.xz ", b"data.tar.zst"), "needs dpkg-deb"),
        (deb({"x": "a"}).replace(b"data.tar.xz", b"other.xz   "), "no data.tar"),
        (deb({"x": "a"}).replace(b"\xfd7zXZ", b"\0\0\0\0\0"), "could not be opened"),
    ],
    ids=["a web page", "cut", "zstd", "no data", "damaged"],
)
def test_damaged(packages, programs, tmp_path, content, message):
    (tmp_path / "words_1_all.deb").write_bytes(content)
    with pytest.raises(packages.PackageError, match=message):
        packages.fetch(["words"], str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["bin", "words_1_all.deb"]

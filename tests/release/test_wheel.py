"""What is in the wheel and the sdist, and the version that they get."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from copy import copy as copy_of
from pathlib import Path
from types import ModuleType

import pytest

from returnn_tf import __version__ as BASE
from returnn_tf.cli.explain import pages
from returnn_tf.cli.main import EXIT_BAD_DATA, main
from returnn_tf.cli.new import kinds
from returnn_tf.native import build as native_build
from returnn_tf.native import sources as native_sources
from returnn_tf.native.sources import OPS
from returnn_tf.util.packed_files import packed, texts, unpack

CHECKOUT = Path(__file__).parents[2]
FOLDERS = ("docs", "i6", "native_ops", "release", "returnn_tf", "tools")
FILES = ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "NOTICE", "README.md", "pyproject.toml", "rnn.py", "setup.py")
MOST_BYTES = 1_990_000
ARCHIVE = "returnn_tf/files.tar.xz"
BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"
GIT = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main")

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git")


def sources(*folders: str) -> set[str]:
    """Return the paths of files in these folders of the checkout, but for what Python leaves there."""
    paths = (path for folder in folders for path in (CHECKOUT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(CHECKOUT)) for path in paths if "__pycache__" not in path.parts}


def archived_texts() -> set[str]:
    """Return the files of the package that are in the archive."""
    return {path for path in sources("returnn_tf/cli") if Path(path).suffix in (".md", ".config")}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what is built, so that nothing is left in the checkout, with files that must not be shipped."""
    folder = tmp_path_factory.mktemp("build") / "copy"
    folder.mkdir()
    for name in FOLDERS:
        shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(CHECKOUT / name, folder)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_x.py").touch()
    (folder / "build" / "lib" / "returnn_tf").mkdir(parents=True)
    (folder / "build" / "lib" / "returnn_tf" / "of_an_earlier_build.py").touch()
    return folder


def build(kind: str, folder: Path, to: Path) -> Path:
    """Build a wheel or an sdist without isolation, and return its path."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD, kind, str(to)], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return to / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(copy: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(build("wheel", copy, copy.parent)) as file:
        yield file


@pytest.fixture(scope="module")
def archive(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> str:
    return wheel.extract(ARCHIVE, tmp_path_factory.mktemp("archive"))


def test_files_of_the_wheel(wheel: zipfile.ZipFile) -> None:
    """Everything in the package and the archive; nothing else."""
    found = {name for name in wheel.namelist() if not name.partition("/")[0].endswith(".dist-info")}
    assert {"returnn_tf/py.typed", "returnn_tf/__init__.pyi"} <= found
    assert found == sources("returnn_tf") - archived_texts() | {ARCHIVE}


def test_files_of_the_archive(archive: str) -> None:
    """The native sources and the folder for job managers, whose tools are links to ../../tools, or short forms."""
    native = {path for path in sources("native_ops") if not path.endswith(".md")}
    assert len(native) > 100 and {Path(path).suffix for path in native} == {".cc", ".cu", ".h"}
    assert {"native_ops/" + path for path in packed("native_ops", archive)} == native
    i6 = packed("i6", archive)
    assert {"i6/" + path for path in i6} == {path for path in sources("i6") if not path.endswith(".md")}
    for path, content in i6.items():
        folder = CHECKOUT if path.startswith("tools/") else CHECKOUT / "i6"
        assert content == (folder / path).read_bytes()


@pytest.mark.parametrize("module, suffix", [(pages, ".md"), (kinds, ".config")])
def test_texts_of_an_installed_package(module: ModuleType, suffix: str, archive: str) -> None:
    """They come from the archive, the same as in a checkout from the folder of their module."""
    found = texts(module.__file__, suffix)
    folder = Path(module.__file__ or "").parent
    assert found == {path.stem: path.read_text("utf8") for path in sorted(folder.glob("*" + suffix))} != {}
    assert texts(module.__file__, suffix, archive) == found
    assert list(texts(module.__file__, suffix, archive)) == list(found)
    names = {"%s/%s%s" % (folder.relative_to(CHECKOUT), name, suffix) for name in found}
    assert names <= {"returnn_tf/cli/" + path for path in packed("returnn_tf/cli", archive)} == archived_texts()


def test_a_broken_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named in one line, as is a Python without lzma."""
    path = tmp_path / "files.tar.xz"
    path.write_bytes(b"x")
    monkeypatch.setattr(pages, "texts", lambda name, suffix: texts(name, suffix, str(path)))
    for reason in ("not an lzma file", "lzma module is not available"):
        with pytest.raises(OSError, match=reason):
            texts(pages.__file__, ".md", str(path))
        assert main(["explain", "nan"]) == EXIT_BAD_DATA
        assert "%s: the package's archive can't be read: %s" % (path, reason) in capsys.readouterr().err
        monkeypatch.setitem(sys.modules, "lzma", None)


def test_sources_lose_nothing_but_comments(archive: str) -> None:
    """The compiler finds the same code in the same lines."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    command = [compiler, "-fpreprocessed", "-E", "-x", "c++", "-"]
    files = packed("native_ops", archive)
    shipped = b"".join(files[path] for path in sorted(files))
    whole = b"".join((CHECKOUT / "native_ops" / path).read_bytes() for path in sorted(files))
    results = [subprocess.run(command, input=code, capture_output=True, check=True).stdout for code in (shipped, whole)]
    lines = [[b" ".join(line.split()) for line in result.splitlines()] for result in results]
    assert lines[0] == lines[1] and len(shipped) < 0.9 * len(whole)


def test_an_installed_package_compiles_its_sources(
    archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are unpacked for the time of the compilation only."""
    monkeypatch.setattr(native_sources, "_FOLDER", str(tmp_path / "gone"))
    monkeypatch.setattr(native_sources, "packed", lambda name: packed(name, archive))
    monkeypatch.setattr(native_sources, "unpack", lambda name, folder: unpack(name, folder, archive))
    monkeypatch.setenv("RETURNN_TF_NATIVE_CACHE", str(tmp_path / "cache"))
    path, compiled = native_build.build(OPS["chunk"])
    assert compiled and sorted(os.listdir(os.path.dirname(path))) == ["lock", "manifest.json", "rtf_chunk.so"]
    assert native_build.build(OPS["chunk"]) == (path, False)


def test_size_of_the_wheel(wheel: zipfile.ZipFile) -> None:
    """It is compressed better than by Python's zipfile."""
    pytest.importorskip("deflate")
    assert wheel.filename is not None
    assert os.path.getsize(wheel.filename) < MOST_BYTES
    assert max(info.file_size for info in wheel.infolist() if ".dist-info" not in info.filename) < 150_000


def test_compressed_wheels(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """The same files, in a smaller zip; once is enough."""
    pytest.importorskip("deflate")
    path, sizes = tmp_path / "x.whl", []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as plain:
        for info in wheel.infolist():  # copied, as writing changes it
            plain.writestr(copy_of(info), wheel.read(info), zipfile.ZIP_DEFLATED)
    command = [sys.executable, str(CHECKOUT / "release" / "compress.py")]
    assert subprocess.run(command, capture_output=True).returncode == 2
    for _ in range(3):
        sizes.append(path.stat().st_size)
        subprocess.run([*command, str(path)], check=True, capture_output=True)
    assert sizes[0] > sizes[1] == sizes[2]
    assert os.listdir(tmp_path) == [path.name]
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        assert [described(info) for info in file.infolist()] == [described(info) for info in wheel.infolist()]


def described(info: zipfile.ZipInfo) -> tuple[object, ...]:
    return info.filename, info.CRC, info.file_size, info.date_time, info.external_attr, info.create_system


def test_a_wheel_of_the_sdist_is_the_same(copy: Path, wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", copy, tmp_path)) as file:
        names = [name for name in file.getnames() if "tests" in Path(name).parts]
        if sys.version_info >= (3, 12):
            file.extractall(tmp_path, filter="data")
        else:
            file.extractall(tmp_path)
    folder = next(path for path in tmp_path.iterdir() if path.is_dir())
    assert names == [] and (folder / "rnn.py").exists()
    with zipfile.ZipFile(build("wheel", folder, tmp_path)) as file:
        assert {i.filename: i.CRC for i in file.infolist()} == {i.filename: i.CRC for i in wheel.infolist()}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with one commit of the files that the version depends on, and no tag."""
    (tmp_path / "returnn_tf").mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE", "returnn_tf/_version.py"):
        shutil.copy(CHECKOUT / name, tmp_path / name)
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "x")
    return tmp_path


def _git(folder: Path, *args: str) -> str:
    done = subprocess.run([*GIT, *args], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def version(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "setup.py", "--version"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1] + ("" if "no version from git" not in done.stderr else " told")


def test_version_by_tag(repository: Path) -> None:
    """A release at its tag, what comes after it else; of other tags nothing is known."""
    commit = "g" + _git(repository, "rev-parse", "--short", "HEAD")
    assert version(repository) == BASE + ".dev1+" + commit
    _git(repository, "tag", "nightly")
    assert version(repository) == BASE + ".dev1+" + commit
    _git(repository, "tag", "v0.3.9")
    assert version(repository) == "0.3.9"
    (repository / "README.md").write_text("changed")
    assert version(repository) == "0.3.10.dev0+%s.dirty" % commit
    _git(repository, "commit", "-q", "-a", "-m", "y")
    assert version(repository) == "0.3.10.dev1+g" + _git(repository, "rev-parse", "--short", "HEAD")


def test_version_without_a_repository(repository: Path) -> None:
    """That of the file, which sdists have of their own; where git fails, it is told."""
    shutil.rmtree(repository / ".git")
    assert version(repository) == BASE
    (repository / ".git").write_text("gitdir: nowhere\n")
    assert version(repository) == BASE + " told"

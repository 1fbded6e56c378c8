"""What is in the wheel and the sdist, and the version that they get."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from returnn_tf import __version__ as BASE
from returnn_tf.native.sources import OPS, source_bytes

CHECKOUT = Path(__file__).parents[2]
FOLDERS = ("docs", "i6", "native_ops", "release", "returnn_tf", "tools")
FILES = ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "NOTICE", "README.md", "pyproject.toml", "rnn.py", "setup.py")
MOST_BYTES = 4_000_000
BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"
GIT = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main")

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git")


def sources(*folders: str) -> set[str]:
    """Return the paths of files in these folders of the checkout, but for what Python leaves there."""
    paths = (path for folder in folders for path in (CHECKOUT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(CHECKOUT)) for path in paths if "__pycache__" not in path.parts}


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
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an installed package, without a checkout around it."""
    folder = tmp_path_factory.mktemp("site")
    wheel.extractall(folder)
    return folder


def run(installed: Path, *args: str, **environ: str) -> str:
    """Run the installed package and return what it prints."""
    env = {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1", **environ}
    done = subprocess.run([sys.executable, *args], cwd=installed, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_files_of_the_wheel(wheel: zipfile.ZipFile) -> None:
    """Everything in the package, the native sources and the folder for job managers; nothing else."""
    found = {name for name in wheel.namelist() if not name.partition("/")[0].endswith(".dist-info")}
    assert {"returnn_tf/py.typed", "returnn_tf/__init__.pyi"} <= found
    native = {path for path in sources("native_ops") if not path.endswith(".md")}
    assert len(native) > 100 and {Path(path).suffix for path in native} == {".cc", ".cu", ".h"}
    beside = native | {path for path in sources("i6") if not path.endswith(".md")}
    assert found == sources("returnn_tf") | {"returnn_tf/" + path for path in beside}


def test_shipped_files_are_those_of_the_checkout(installed: Path) -> None:
    """Byte for byte, so that both find the same compiled ops; the folder for job managers has whole scripts."""
    for path in (installed / "returnn_tf" / "native_ops").rglob("*.*"):
        assert path.read_bytes() == (CHECKOUT / path.relative_to(installed / "returnn_tf")).read_bytes()
    for path in (installed / "returnn_tf" / "i6").rglob("*.py"):
        inside = path.relative_to(installed / "returnn_tf" / "i6")
        folder = CHECKOUT if inside.parts[0] == "tools" else CHECKOUT / "i6"
        assert path.read_bytes() == (folder / inside).read_bytes()


@pytest.mark.slow
def test_an_installed_package_finds_its_files(installed: Path, tmp_path: Path) -> None:
    """Pages on errors, configs of new projects, and the folder for job managers."""
    page = CHECKOUT / "returnn_tf" / "cli" / "explain" / "nan.md"
    assert run(installed, "-m", "returnn_tf", "explain", "nan") == page.read_text("utf8")
    run(installed, "-m", "returnn_tf", "new", str(tmp_path / "x"), "--kind", "ctc")
    assert (tmp_path / "x" / "x.config").exists()
    run(installed, "-m", "returnn_tf", "root", str(tmp_path / "root"))
    script = (tmp_path / "root" / "tools" / "hdf_dump.py").read_text("utf8")
    assert script == (CHECKOUT / "tools" / "hdf_dump.py").read_text("utf8")


def test_wheel_and_checkout_share_compiled_ops(installed: Path) -> None:
    """The sources that decide on the entry in the cache are the same, also those of kernels for GPUs."""
    code = """if True:
        import hashlib
        import returnn_tf.native.sources as s
        print(s.__file__)
        for _, op in s.OPS.items():
            print(*[hashlib.sha256(s.source_bytes(op, cuda=cuda)).hexdigest() for cuda in (False, True)])
    """
    where, *there = run(installed, "-c", code).split()
    assert where.startswith(str(installed)) and len(there) == 2 * len(list(OPS.items()))
    here = [source_bytes(op, cuda=cuda) for _, op in OPS.items() for cuda in (False, True)]
    assert there == [hashlib.sha256(content).hexdigest() for content in here]


def test_links_of_the_description(wheel: zipfile.ZipFile) -> None:
    """An index shows the README, but has no files beside it."""
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    text = wheel.read(name).decode("utf8")
    assert "Description-Content-Type: text/markdown" in text and "# returnn_tf\n" in text
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links and all(link.startswith("https://") for link in links), links
    assert "Start (`docs/start.md`): ten minutes" in text and "under the Apache-2.0 licence" in text


def test_size_of_the_wheel(wheel: zipfile.ZipFile) -> None:
    assert wheel.filename is not None
    assert os.path.getsize(wheel.filename) < MOST_BYTES


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_version_of_a_checkout(repository: Path) -> None:
    """What runs from a checkout, as an editable install does, says the version of a wheel of the same commit."""
    code = "from returnn_tf._version import shown_version; print(shown_version())"
    (repository / "returnn_tf" / "__init__.py").touch()
    _git(repository, "add", ".")
    _git(repository, "commit", "-q", "-m", "y")
    for tag in ("", "v0.3.9"):
        if tag:
            _git(repository, "tag", tag)
        done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == version(repository)
        assert version(repository) == tag[1:] or "dev2+g" in version(repository)


def test_version_without_a_repository(repository: Path) -> None:
    """That of the file, which sdists have of their own; where git fails, it is told."""
    shutil.rmtree(repository / ".git")
    assert version(repository) == BASE
    (repository / ".git").write_text("gitdir: nowhere\n")
    assert version(repository) == BASE + " told"

"""Run the core of the suite with other releases of TensorFlow and Python: ``make test-versions``.

Without arguments the pairs of `CHOSEN`; else those named, as "2.21/3.13", or "all". Each gets an environment of its own
in ``.versions``, from the wheel of this checkout, so that its requirements are tried too. A pair without an interpreter
is told and left out. The rows of ``docs/versions.md`` are rewritten for the pairs that were run.
"""

from __future__ import annotations

import datetime
import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".versions"
PAGE = ROOT / "docs" / "versions.md"
START, END = "<!-- rows of make test-versions -->\n\n", "\n<!-- end of rows -->\n"

#: Pythons for which there is a TensorFlow of this release.
RELEASES = {
    "2.16": "3.9 3.10 3.11 3.12",
    "2.17": "3.9 3.10 3.11 3.12",
    "2.18": "3.9 3.10 3.11 3.12",
    "2.19": "3.9 3.10 3.11 3.12",
    "2.20": "3.9 3.10 3.11 3.12 3.13",
    "2.21": "3.10 3.11 3.12 3.13",
}
#: Each release and each Python at least once, the ends of both ranges, and the pair of the full set.
CHOSEN = ("2.16/3.9", "2.16/3.11", "2.17/3.10", "2.18/3.11", "2.19/3.12", "2.20/3.12", "2.21/3.13")
EXTRAS = "cpu,audio,plot,text,test"
#: The core, by column of the table: what touches TensorFlow, numpy, h5py and the compiler most.
CORE = {
    "tensor, config": ("tests/tensor", "tests/config", "tests/graph"),
    "native ops": (
        "tests/native/test_align.py",
        "tests/native/test_attention.py",
        "tests/native/test_gru.py",
        "tests/native/test_lstm.py",
        "tests/native/test_scan.py",
        "tests/native/test_update.py",
    ),
    "layers": ("tests/layers/test_conformance.py", "tests/layers/rec", "tests/layers/losses"),
    "network": ("tests/compiler/test_loops.py", "tests/compiler/test_network.py", "tests/compiler/test_subnetworks.py"),
    "engine": (
        "tests/engine/test_checkpoint.py",
        "tests/engine/test_optimizers.py",
        "tests/engine/test_precision.py",
        "tests/engine/test_updater.py",
    ),
    "data": ("tests/datasets/test_hdf.py", "tests/datasets/test_audio.py"),
}
#: Prints the versions of a row; the self-test compiles, loads and tests every native op.
PROBE = """
import importlib.metadata as m, platform
print(m.version("tensorflow-cpu"), platform.python_version(), *[m.version(n) for n in ("numpy", "keras", "h5py")])
"""
SELF_TEST = "returnn_tf.native.self_test"


class Problem(Exception):
    """What stops a pair; the message is for the user."""


class Pair(NamedTuple):
    """A release of TensorFlow and one of Python, as "2.21" and "3.13"."""

    tensorflow: str
    python: str

    def __str__(self) -> str:
        """Return it as it is named on the command line."""
        return "%s/%s" % self


def main(args: Sequence[str]) -> int:
    """Run the pairs and write their rows.

    :return: 0; 1 if a pair fails; 2 for a pair that does not exist, or a named one whose interpreter is missing
    """
    try:
        pairs = find_pairs(args)
    except Problem as exc:
        print("test-versions: %s" % exc, file=sys.stderr)
        return 2
    code = 0
    for pair in pairs:
        interpreter = find_interpreter(pair.python)
        if interpreter is None:
            print("%s: left out, no Python %s was found (PATH, pyenv, uv)" % (pair, pair.python), flush=True)
            code = max(code, 2 if args and "all" not in args else 0)
            continue
        print("%s: with %s" % (pair, interpreter), flush=True)
        try:
            cells, failed = run_pair(pair, interpreter)
        except Problem as exc:
            print("%s: %s" % (pair, exc), flush=True)
            code = 1
            continue
        code = 1 if failed else code
        PAGE.write_text(with_row(PAGE.read_text(encoding="utf8"), cells), encoding="utf8")
        print("%s: %s" % (pair, "; ".join("%s %s" % item for item in zip(HEAD, cells))), flush=True)
    return code


def find_pairs(args: Iterable[str]) -> list[Pair]:
    """Return the pairs that are named.

    :raises Problem: there is no such pair
    """
    every = [Pair(release, python) for release, pythons in RELEASES.items() for python in pythons.split()]
    found = []
    for name in args or CHOSEN:
        pair = Pair(*name.partition("/")[::2])
        if name != "all" and pair not in every:
            raise Problem("there is no pair %r; there are: all, %s" % (name, ", ".join(map(str, every))))
        found += every if name == "all" else [pair]
    return found


def find_interpreter(version: str) -> Optional[str]:
    """Return the path of a Python of this version ("3.13"): the first of PATH, pyenv and uv that can make a venv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    found = [sys.executable, shutil.which("python" + version), shutil.which("python3")]
    found += [str(path / "bin" / "python") for path in sorted(pyenv.glob(version + ".*"), reverse=True)]
    if shutil.which("uv"):
        env = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
        command = ["uv", "python", "find", "--no-project", version]
        found.append(subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout.strip())
    for path in filter(None, found):
        test = "import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '" + version + "')"
        try:
            if subprocess.run([path, "-c", test], capture_output=True, check=False).returncode == 0:
                return path
        except OSError:
            continue
    return None


def run_pair(pair: Pair, interpreter: str) -> tuple[list[str], bool]:
    """Make the environment of a pair if it is not there, and run the core in it.

    :return: the cells of its row; whether something failed
    :raises Problem: there is no environment, or tests that could not start
    """
    started, folder = time.monotonic(), FOLDER / ("tf%s-py%s" % pair)
    FOLDER.mkdir(exist_ok=True)
    log = folder.with_suffix(folder.suffix + ".log")
    log.write_text("")
    python = str(folder / "bin" / "python")
    if not Path(python).exists():
        _call([interpreter, "-m", "venv", str(folder)], log)
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    wheels = folder / "wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    _call([*pip, "install", "-q", "--upgrade", "pip>=25"], log)
    with (FOLDER / "lock").open("w") as lock:  # all builds of a checkout use its folder "build"
        fcntl.flock(lock, fcntl.LOCK_EX)
        _call([*pip, "wheel", "-q", "--no-deps", "-w", str(wheels), str(ROOT)], log)
    wheel = next(wheels.glob("*.whl"))
    _call([*pip, "install", "-q", "%s[%s]" % (wheel, EXTRAS), "tensorflow-cpu~=%s.0" % pair.tensorflow], log)
    _call([*pip, "check"], log)
    versions = _output([python, "-c", PROBE]).split()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    report = folder.with_suffix(folder.suffix + ".xml")
    report.unlink(missing_ok=True)
    ops = subprocess.run([python, "-m", SELF_TEST], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    lines = re.findall(r"(?m)^\w+: .*$", ops.stdout)
    good = sum(line.endswith(": ok") or ": ok " in line for line in lines)
    compiled = "%d of %d" % (good, len(lines)) if lines else "failed"
    with log.open("a") as out:
        out.write(ops.stdout + ops.stderr)
        files = [path for paths in CORE.values() for path in paths]
        command = [python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
        command += ["--tb=short", "--junitxml", str(report), *files]
        out.flush()
        subprocess.run(command, cwd=ROOT, env=env, stdout=out, stderr=out, check=False)
    if not report.exists():
        raise Problem("pytest could not start, see %s" % log)
    cells, failed = read_report(report.read_text(encoding="utf8"))
    minutes = "%.0f" % ((time.monotonic() - started) / 60)
    today = datetime.date.today().isoformat()
    failed = failed or ops.returncode != 0 or not lines
    return [*versions, compiled, *cells, minutes, today], failed


def _call(command: Sequence[str], log: Path) -> None:
    """Run a command with its output in the log.

    :raises Problem: it fails
    """
    with log.open("a") as out:
        out.write("$ %s\n" % " ".join(command))
        out.flush()
        if subprocess.run(command, cwd=ROOT, stdout=out, stderr=out, check=False).returncode:
            raise Problem("failed: %s; see %s" % (" ".join(command), log))


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def read_report(text: str) -> tuple[list[str], bool]:
    """Count passed and failed tests in a JUnit report.

    :return: a cell for each part of `CORE`, "12" or "12, 1 failed, 2 skipped"; whether one failed, or a part has none
    """
    counts: dict[str, Counter[str]] = {part: Counter() for part in CORE}
    for case in xml.etree.ElementTree.fromstring(text).iter("testcase"):
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        module = (case.get("classname") or case.get("name") or "").replace(".", "/")
        for part, paths in CORE.items():
            if any((module + "/").startswith(path.replace(".py", "") + "/") for path in paths):
                counts[part][kind] += 1
    others = ("failed", "skipped")
    cells = [
        ", ".join([str(count["passed"]), *("%d %s" % (count[kind], kind) for kind in others if count[kind])])
        for count in counts.values()
    ]
    return cells, any(count["failed"] or not count["passed"] for count in counts.values())


HEAD = ("TensorFlow", "Python", "numpy", "Keras", "h5py", "native ops compiled", *CORE, "minutes", "date")


def with_row(page: str, cells: Sequence[str]) -> str:
    """Return the page with this row in its table, in the place of the one for the same pair."""
    before, _, rest = page.partition(START)
    table, _, after = rest.partition(END)
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]]
    rows = [row for row in rows if _minor(row) != _minor(cells)] + [list(cells)]
    lines = [list(HEAD), ["---"] * len(HEAD), *sorted(rows, key=_minor)]
    return before + START + "".join("| %s |\n" % " | ".join(line) for line in lines) + END + after


def _minor(cells: Sequence[str]) -> list[int]:
    """Return the release of TensorFlow and of Python, without their last numbers."""
    return [int(number) for cell in cells[:2] for number in cell.split(".")[:2]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

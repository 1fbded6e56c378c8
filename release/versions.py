"""Run the core of the suite with other releases of TensorFlow and Python: ``make test-versions``.

Without arguments the pairs of `CHOSEN`; else those named, as "2.21/3.13", or "all". Each gets an environment of its own
in ``.versions``, from the wheel of this checkout, so that its requirements are tried too. A pair without an interpreter
is told and left out. The rows of ``docs/versions.md`` are rewritten for the pairs that were run.

``make test-faults`` runs, in the same environments, the faults of trainings with several processes: with the first and
the last release and one between, or with the pairs named.
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
#: For the faults, which depend on the release of TensorFlow.
CHOSEN_FOR_FAULTS = ("2.16/3.11", "2.19/3.12", "2.21/3.13")
FAULTS = "tests/reliability/test_ranks_faults.py"
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
    """Run the pairs and write their rows; with ``--faults`` first, run the faults with them.

    :return: 0; 1 if a pair fails; 2 for a pair that does not exist, or a named one whose interpreter is missing
    """
    with_faults = args[:1] == ["--faults"]
    if with_faults:
        args = args[1:]
    try:
        pairs = find_pairs(args or (CHOSEN_FOR_FAULTS if with_faults else CHOSEN))
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
            text, failed = (run_faults if with_faults else run_core)(pair, interpreter)
        except Problem as exc:
            text, failed = str(exc), True
        code = 1 if failed else code
        print("%s: %s" % (pair, text), flush=True)
    return code


def find_pairs(args: Iterable[str]) -> list[Pair]:
    """Return the pairs that are named.

    :raises Problem: there is no such pair
    """
    every = [Pair(release, python) for release, pythons in RELEASES.items() for python in pythons.split()]
    found = []
    for name in args:
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


def make_environment(pair: Pair, interpreter: str, log: Path) -> str:
    """Make the environment of a pair if it is not there, with this checkout, and return its interpreter.

    :param log: gets the output of pip
    :raises Problem: there is no environment
    """
    folder = FOLDER / ("tf%s-py%s" % pair)
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
    return python


def start_log(pair: Pair, kind: str) -> Path:
    """Return the empty log of the runs of this kind with a pair."""
    FOLDER.mkdir(exist_ok=True)
    log = FOLDER / ("tf%s-py%s%s.log" % (*pair, kind))
    log.write_text("")
    return log


def run_core(pair: Pair, interpreter: str) -> tuple[str, bool]:
    """Run the core with a pair and write its row.

    :return: the row as text; whether something failed
    :raises Problem: there is no environment, or tests that could not start
    """
    started, log = time.monotonic(), start_log(pair, "")
    python = make_environment(pair, interpreter, log)
    versions = _output([python, "-c", PROBE]).split()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    ops = subprocess.run([python, "-m", SELF_TEST], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    lines = re.findall(r"(?m)^\w+: .*$", ops.stdout)
    good = sum(line.endswith(": ok") or ": ok " in line for line in lines)
    compiled = "%d of %d" % (good, len(lines)) if lines else "failed"
    with log.open("a") as out:
        out.write(ops.stdout + ops.stderr)
    files = [path for paths in CORE.values() for path in paths]
    cells, failed = read_report(_pytest(python, ["-n", "2", "--dist", "loadfile", *files], log))
    minutes = "%.0f" % ((time.monotonic() - started) / 60)
    today = datetime.date.today().isoformat()
    failed = failed or ops.returncode != 0 or not lines
    row = [*versions, compiled, *cells, minutes, today]
    PAGE.write_text(with_row(PAGE.read_text(encoding="utf8"), row), encoding="utf8")
    return "; ".join("%s %s" % item for item in zip(HEAD, row)), failed


def run_faults(pair: Pair, interpreter: str) -> tuple[str, bool]:
    """Run the faults of trainings with several processes with a pair.

    :return: how many passed and how long they took; whether one failed, or none passed
    :raises Problem: there is no environment, or tests that could not start
    """
    log = start_log(pair, "-faults")
    python = make_environment(pair, interpreter, log)
    count = Counter(kind for _, kind in read_cases(_pytest(python, ["-m", "slow or long", FAULTS], log)))
    seconds = re.findall(r"(?m)^\d+ faults of ranks.*$", log.read_text(encoding="utf8"))
    return "; ".join([_counted(count), *seconds]), bool(count["failed"] or not count["passed"])


def _pytest(python: str, arguments: Sequence[str], log: Path) -> str:
    """Run tests, and return their report.

    :raises Problem: they could not start
    """
    report = log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "--junitxml", str(report)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    with log.open("a") as out:
        subprocess.run([*command, *arguments], cwd=ROOT, env=env, stdout=out, stderr=out, check=False)
    if not report.exists():
        raise Problem("pytest could not start, see %s" % log)
    return report.read_text(encoding="utf8")


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
    for module, kind in read_cases(text):
        for part, paths in CORE.items():
            if any((module + "/").startswith(path.replace(".py", "") + "/") for path in paths):
                counts[part][kind] += 1
    return [_counted(count) for count in counts.values()], any(
        count["failed"] or not count["passed"] for count in counts.values()
    )


def read_cases(text: str) -> list[tuple[str, str]]:
    """Return module, as a path, and passed, failed or skipped, of each case of a JUnit report."""
    cases = []
    for case in xml.etree.ElementTree.fromstring(text).iter("testcase"):
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        cases.append(((case.get("classname") or case.get("name") or "").replace(".", "/"), kind))
    return cases


def _counted(count: Counter[str]) -> str:
    """Return "12" or "12, 1 failed, 2 skipped"."""
    return ", ".join([str(count["passed"]), *("%d %s" % (count[k], k) for k in ("failed", "skipped") if count[k])])


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

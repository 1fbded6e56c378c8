"""Stderr of C++ code: informational lines are left out, all else is shown, also the last words of a crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795510803.655183   12543 port.cc:153] oneDNN custom operations are on.",
    "W0000 00:00:1795510803.655183   12543 x.cc:1] a warning",
    "In short: an error",
    "F0000 00:00:1795510803.655183   12543 x.cc:1] AVX is missing",
]
#: A module in place of TensorFlow, which writes to file descriptor 2 as C++ code does.
MODULE = "import os\nos.write(2, %r)\nx = 1\n%s\n"


def import_it(tmp_path: Path, end: str = "", level: str = "3", path: str = "") -> tuple[int, list[str]]:
    """Import a module lazily in a new process; return its exit code and its lines on stderr."""
    (tmp_path / "tensorflow.py").write_text(MODULE % (("\n".join(LINES) + "\n").encode(), end))
    code = "import os, sys; from returnn_tf.util.lazy_tf import tf; tf.x; os.write(2, b'I0000 later\\n'); sys.exit(7)"
    environment = {"PATH": path or "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": level}
    environment["PYTHONPATH"] = "%s:%s" % (tmp_path, ROOT)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr.splitlines()


def test_info_lines(tmp_path: Path) -> None:
    """They are left out while the library is loaded, not later, and not if the user asks for them."""
    assert import_it(tmp_path) == (7, [*LINES[2:], "I0000 later"])
    assert import_it(tmp_path, level="0") == (7, [*LINES, "I0000 later"])


def test_without_sed(tmp_path: Path) -> None:
    assert import_it(tmp_path, path=str(tmp_path)) == (7, [*LINES, "I0000 later"])


@pytest.mark.parametrize("path", ["/usr/bin:/bin", "/no/such/folder"], ids=["sed", "no sed"])
@pytest.mark.parametrize("closed", [False, True])
def test_no_file_descriptor_is_left(closed: bool, path: str) -> None:
    """Nor does a closed stderr become something else."""
    code = (
        "import os, sys; from returnn_tf.util.quiet import without_info_lines\n"
        "if %r: os.close(2)\n"
        "before = sorted(os.listdir('/dev/fd'))\n"
        "with without_info_lines(): pass\n"
        "sys.exit(before != sorted(os.listdir('/dev/fd')))"
    )
    environment = {"PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code % closed], env=environment, timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("end, code", [("os.abort()", -6), ("os._exit(3)", 3)])
def test_last_words(tmp_path: Path, end: str, code: int) -> None:
    assert import_it(tmp_path, end) == (code, LINES[2:])


def test_failing_import(tmp_path: Path) -> None:
    code, lines = import_it(tmp_path, "raise ImportError('broken')")
    assert code == 1 and lines[: len(LINES) - 2] == LINES[2:] and lines[-1] == "ImportError: broken"

"""The helpers of the tests where they meet another machine, or a stop."""

from __future__ import annotations

import os
import select

import pytest

from tests import processes
from tests.compiling import text_cached
from tests.waiting import until


def test_cache_without_home(tmp_path, monkeypatch):
    """Where the user has no folder that can be written, the cache is in the temporary folder."""
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert text_cached(["true"], lambda: "made", []) == "made"
    assert text_cached(["true"], lambda: "made again", []) == "made"
    assert [len(list(folder.iterdir())) for folder in tmp_path.iterdir() if folder.is_dir()] == [1]


@pytest.mark.slow
def test_stop_within_program(tmp_path, monkeypatch):
    """Ctrl-C ends a program that runs, although it has its own session, and the next one starts."""
    pid = tmp_path / "pid"

    def stop(*args):
        until(lambda: pid.exists() and pid.read_text().endswith("\n"))
        raise KeyboardInterrupt

    code = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True); time.sleep(60)"
    with monkeypatch.context() as context:
        context.setattr(select, "select", stop)
        with pytest.raises(KeyboardInterrupt):
            processes.run(["-c", code, str(pid)])
    assert processes.run(["-c", "print('next')"]).stdout == "next\n"
    until(lambda: not os.path.exists("/proc/%s" % pid.read_text().strip()), "the program has not ended")


@pytest.mark.slow
def test_seconds_of_programs_count_when_they_end():
    """Not when the process that forks them does, at the end of the session."""
    processes.run(["-c", "pass"])
    before, own = processes.computing(), sum(os.times()[:4])
    processes.run(["-c", "import time\nwhile time.process_time() < 0.5: pass"])
    assert processes.computing() - before >= 0.5 > sum(os.times()[:4]) - own


@pytest.mark.parametrize(
    "code, status, errors",
    [
        ("pass", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('text')", 1, "text\n"),
        ("raise SystemExit(None)", 0, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import atexit, sys; atexit.register(print, 'end', file=sys.stderr)", 0, "end\n"),
        ("import sys, threading; threading.Timer(0.1, print, ['late'], {'file': sys.stderr}).start()", 0, "late\n"),
    ],
)
def test_end_of_program(code, status, errors):
    """It exits as with Python, whose own end, with TensorFlow, it does not wait for."""
    done = processes.run(["-c", "import sys; sys.stdout.write('kept')\n" + code])
    assert (done.returncode, done.stdout) == (status, "kept") and done.stderr.endswith(errors)
    assert bool(errors) == bool(done.stderr)

"""The helpers of the tests where they meet another machine, or a stop."""

from __future__ import annotations

import os
import select
import time

import pytest

from tests import processes
from tests.compiling import text_cached


def test_cache_without_home(tmp_path, monkeypatch):
    """Where the user has no folder that can be written, the cache is in the temporary folder."""
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert text_cached(["true"], lambda: "made", []) == "made"
    assert text_cached(["true"], lambda: "made again", []) == "made"
    assert [len(list(folder.iterdir())) for folder in tmp_path.iterdir() if folder.is_dir()] == [1]


def test_stop_within_program(tmp_path, monkeypatch):
    """Ctrl-C ends a program that runs, although it has its own session, and the next one starts."""
    pid = tmp_path / "pid"

    def stop(*args):
        while not (pid.exists() and pid.read_text().endswith("\n")):
            time.sleep(0.01)
        raise KeyboardInterrupt

    code = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'w'), flush=True); time.sleep(60)"
    with monkeypatch.context() as context:
        context.setattr(select, "select", stop)
        with pytest.raises(KeyboardInterrupt):
            processes.run(["-c", code, str(pid)])
    assert processes.run(["-c", "print('next')"]).stdout == "next\n"
    for _ in range(1000):
        if not os.path.exists("/proc/%s" % pid.read_text().strip()):
            return
        time.sleep(0.01)
    raise AssertionError("the program still runs")

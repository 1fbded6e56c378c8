"""returnn-tf status: what it makes of files, whole and damaged ones. Of real runs: tests/reliability/test_status.py."""

from __future__ import annotations

import io
import json
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from returnn_tf.cli import status
from returnn_tf.cli.main import main
from returnn_tf.cli.status import watch
from returnn_tf.config import ConfigError, DataError
from returnn_tf.engine.learning_rate.file import EpochData, update_file
from returnn_tf.engine.monitoring import status_file
from returnn_tf.engine.monitoring.status_file import StatusFile, read_status
from tests.waiting import LONG

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _checkpoint(prefix, size=5):
    pathlib.Path(str(prefix) + ".index").write_bytes(b"x" * 5)
    manifest = {"epoch": 1, "step": 1, "files": {os.path.basename(prefix) + ".index": {"size": size, "sha256": ""}}}
    pathlib.Path(str(prefix) + ".manifest.json").write_text(json.dumps(manifest))


def test_everything_in_one_report(tmp_path, capsys):
    model = str(tmp_path / "net")
    rates = str(tmp_path / "newbob.data")
    update_file(
        rates, lambda _: {1: EpochData(0.1, {"dev_score": 2.5}), 2: EpochData(0.1, {"dev_score": 1.5, ":meta:x": 1.0})}
    )
    for name, size in (("net.001", 5), ("net.002", 5), ("net.003.step70", 5), ("net.003.step90", 6)):
        _checkpoint(str(tmp_path / name), size)
    file = StatusFile(model)
    file.update(
        now=True, epoch=3, num_epochs=5, step=20, global_step=90, complete=0.25, seconds_per_step=0.5, hosts=["a", "b"]
    )
    file.update(learning_rate_file=rates, frames_per_second=1000.0, loss=1.25, ranks=[{"wait": 0.25}, {"wait": 0.125}])
    file.signal("SIGTERM")
    file.ended("stopped", 143)
    assert main(["status", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("%s: ended (stopped, exit code 143) at 20" % model)
    assert lines[0].endswith("it was pid %d on %s" % (os.getpid(), os.uname().nodename))
    expected = "epoch 3 of 5, step 20 (total 90), 25.0% of the epoch, 0.500 s/step, 1000 frames/s, loss 1.25"
    assert lines[1] == "  " + expected
    assert lines[2].startswith("  last signal: SIGTERM at 20")
    assert lines[3:5] == ["  rank 0 on a: wait 0.25", "  rank 1 on b: wait 0.125"]
    assert lines[5] == "  best: dev_score 1.5 (epoch 2)"
    bad = "net.003.step90 (net.003.step90.index has 5 bytes, expected 6)"
    assert lines[6] == "  resumes at net.003.step70; other checkpoints: net.002, net.001; not usable: " + bad
    assert len(lines) == 7
    assert main(["status", "--point", model]) == 0
    assert capsys.readouterr().out == "net.003.step70\n"
    assert main(["status", "--json", model]) == 0
    assert json.loads(capsys.readouterr().out)[0]["best"] == {"dev_score": [2, 1.5]}


def test_all_runs_of_a_folder(tmp_path, capsys):
    for name in ("b.001", "a.pretrain.001"):
        _checkpoint(str(tmp_path / name))
    StatusFile(str(tmp_path / "c")).update(now=True)
    assert main(["status", str(tmp_path), "--point"]) == 0
    assert capsys.readouterr().out == "a.pretrain.001\nb.001\nthe beginning\n"
    assert main(["status", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "a: no status file, only checkpoints" in out
    assert "c: dead without a final status" in out  # nobody holds its lock


def test_the_first_checkpoint_within_an_epoch_is_a_run_too(tmp_path, capsys):
    _checkpoint(str(tmp_path / "net.001.step70"))
    assert main(["status", str(tmp_path), "--point"]) == 0
    assert capsys.readouterr().out == "net.001.step70\n"


def test_json_has_no_numbers_that_json_lacks(tmp_path, capsys):
    StatusFile(str(tmp_path / "net")).update(now=True, loss=float("nan"), ranks=[{"wait": float("inf")}])
    assert main(["status", "--json", str(tmp_path)]) == 0
    status_of = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)[0]["status"]
    assert status_of["loss"] is None and status_of["ranks"] == [{"wait": None}]


def test_wrong_arguments(tmp_path):
    for args, error in (
        ([], "expected returnn-tf status"),
        (["--jsn", "x"], "expected returnn-tf status"),
        ([str(tmp_path)], "no run in the folder"),
        ([str(tmp_path / "misspelt")], "no run '.*misspelt': neither"),
    ):
        with pytest.raises(ConfigError, match=error):
            status.run(args)


@pytest.mark.parametrize(
    "content, error",
    [
        (b"", "not a complete status file"),
        (b'{"epoch": 3', "not a complete status file"),
        (b"[1]", r"expected \{...\}"),
        (b'{"epoch": "3"}', "'epoch' has a wrong value, '3'"),
        (b'{"epoch": true}', "'epoch' has a wrong value"),
        (b'{"ended": []}', "'ended' has a wrong value"),
        (b'{"pid": ' + b"[" * 200000 + b"]" * 200000 + b"}", "not a complete status file"),
        (b"\xff\xfe", "not a complete status file"),
        (b" " * (status_file.MAX_BYTES + 1), "has more than 1048576 bytes"),
    ],
)
def test_damaged_status_files(content, error, tmp_path, capsys):
    path = tmp_path / ".net.status.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=error):
        read_status(str(path))
    assert main(["status", str(tmp_path)]) == 0
    assert "problem: " in capsys.readouterr().out


def test_written_at_most_every_few_seconds_and_whole(tmp_path, monkeypatch):
    file, versions = StatusFile(str(tmp_path / "net"), interval=0.2), []
    for step in range(10):
        monkeypatch.setattr(time, "monotonic", lambda now=1.0 + 0.11 * step: now)
        file.update(step=step)
        versions.append(read_status(file.path)["step"])
    assert versions == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8]
    assert os.listdir(tmp_path) == [".net.status.json"]


def test_a_full_disk_does_not_stop_a_training(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("returnn_tf"), "propagate", True)
    file = StatusFile(str(tmp_path / "nowhere" / "net"))
    file.update(now=True, epoch=1)
    file.update(now=True, epoch=2)
    records = {id(record) for record in caplog.records if "can't be written" in record.getMessage()}
    assert len(records) == 1  # one record, which pytest may have caught at two loggers


def test_silent_where_it_is_not_wanted(tmp_path):
    StatusFile("").update(now=True)
    StatusFile(str(tmp_path / "net"), enabled=False).ended("finished")
    assert os.listdir(tmp_path) == []


def test_needs_no_tensorflow(tmp_path):
    _checkpoint(str(tmp_path / "net.001"))
    code = "import sys; from returnn_tf.cli.main import main; main(sys.argv[1:]); print('tensorflow' in sys.modules)"
    command = [sys.executable, "-c", code, "status", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nFalse\n") and "resumes at net.001" in done.stdout


def _row(name, state="running", **cells):
    return watch.RunRow(
        name, state, {**dict.fromkeys(("epoch", "best", "done", "loss", "s/step", "updated"), ""), **cells}
    )


_ROWS = [
    _row("sweep/000/network", "finished", epoch="5/5", best="dev_error 0.25 (4)"),
    _row("sweep/001/network", "failed", epoch="1/5"),
    _row("sweep/002/network", epoch="3/5", best="dev_error 0.5 (2)", done="40%", loss="0.7", updated="0:00:03"),
]


def test_table_has_what_runs_first():
    lines = watch.table(_ROWS, 100, 20)
    assert lines[0] == "3 runs: 1 running, 1 failed, 1 finished"
    assert lines[1].split() == ["run", "state", "epoch", "best", "done", "loss", "updated"]
    assert [line.split()[:2] for line in lines[2:]] == [
        ["sweep/002/network", "running"],
        ["sweep/001/network", "failed"],
        ["sweep/000/network", "finished"],
    ]
    assert lines[2].split()[2:] == ["3/5", "dev_error", "0.5", "(2)", "40%", "0.7", "0:00:03"]
    starts = [line.index(word) for line, word in zip(lines[1:], ("epoch", "3/5", "1/5", "5/5"))]
    assert len(set(starts)) == 1


@pytest.mark.parametrize("width", [100, 72, 60, 50, 40, 30, 20, 10, 3, 1])
def test_table_in_a_narrow_terminal(width):
    lines = watch.table(_ROWS, width, 20)
    assert all(len(line) <= width for line in lines) and len(lines) == 5
    if width >= 20:  # the ends of names tell runs apart
        assert [line.split()[0][-7:] for line in lines[2:]] == ["network"] * 3
    if width >= 50:
        assert "3/5" in lines[2] and "dev_error" in lines[2]
    assert [re.sub(r"\x1b\[\d+m", "", line) for line in watch.table(_ROWS, width, 20, color=True)] == lines


@pytest.mark.parametrize("height, shown", [(20, 3), (5, 3), (4, 1), (3, 0), (1, 0)])
def test_table_in_a_low_terminal(height, shown):
    lines = watch.table(_ROWS, 100, height)
    assert len(lines) <= height and lines[0].startswith("3 runs")
    assert sum("network" in line for line in lines) == shown
    if shown < 3 and height > 1:
        assert lines[-1] == "... and %d more" % (3 - shown)


@pytest.mark.parametrize(
    "reason, code, state",
    [
        ("finished", 0, "finished"),
        ("stopped by SIGTERM", 143, "stopped"),
        ("stopped by SIGUSR1", 99, "stopped"),
        (status_file.ABORTED, None, "stopped"),
        ("DataError: no such file", None, "failed"),
        ("rank 1 on b has failed", 1, "failed"),
        (None, None, "dead"),
    ],
)
def test_states_of_runs_that_ended(reason, code, state, tmp_path):
    file = StatusFile(str(tmp_path / "net"))
    file.update(now=True, epoch=2, num_epochs=5)
    if reason:
        file.ended(reason, code)
    row = watch.row_of(str(tmp_path / "net"), str(tmp_path))
    assert (row.name, row.state, row.cells["epoch"]) == ("net", state, "2/5")


class _Watched:
    """Calls functions between the pictures of ``--watch``, then interrupts it."""

    def __init__(self, *between):
        self.between = list(between)

    def __call__(self, seconds):
        if not self.between:
            raise KeyboardInterrupt
        self.between.pop(0)()


def test_watch_writes_news_only_where_the_output_is_no_terminal(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    rates = str(tmp_path / "rates")
    file = StatusFile(str(tmp_path / "a" / "b" / "net\x1b"), interval=0.0)
    file.update(now=True, epoch=1, num_epochs=3, step=1, learning_rate_file=rates)
    stream = io.StringIO()

    def a_step():
        file.update(now=True, step=2)

    def an_epoch():
        update_file(rates, lambda _: {1: EpochData(0.1, {"train_score": 1.0, "dev_score": 2.5, "dev_error": 0.5})})
        file.update(now=True, epoch=2)

    def the_end():
        file.ended("finished", 0)

    assert watch.run([str(tmp_path)], stream, _Watched(a_step, an_epoch, the_end)) == 0
    lines = [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()]
    assert lines == [
        r"a/b/net\x1b: dead, 1/3",
        r"a/b/net\x1b: dead, 2/3, dev_error 0.5 (1)",
        r"a/b/net\x1b: finished, 2/3, dev_error 0.5 (1)",
    ]


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_watch_redraws_on_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    sizes = iter([(80, 24), (80, 24), (40, 24)])
    monkeypatch.setattr(watch.shutil, "get_terminal_size", lambda: os.terminal_size(next(sizes)))
    file = StatusFile(str(tmp_path / "net"), interval=0.0)
    file.update(now=True, epoch=1, num_epochs=3)
    stream = _Terminal()
    steps = (lambda: file.update(now=True, epoch=2), lambda: file.update(now=True, epoch=3))
    assert watch.run([str(tmp_path)], stream, _Watched(*steps)) == 0
    text = stream.getvalue()
    assert text.count("\x1b[3A\r") == 1  # over the three lines of the first picture
    assert text.count("\x1b[2J\x1b[H") == 1  # the width has changed
    assert text.endswith("\r\x1b[K") and text.count("1 run: 1 dead") == 3
    monkeypatch.setenv("TERM", "dumb")
    stream = _Terminal()
    watch.run([str(tmp_path)], stream, _Watched())
    assert "\x1b" not in stream.getvalue() and "net: dead, 3/3" in stream.getvalue()


def test_watch_shows_damaged_files_and_waits_for_the_first_run(tmp_path, capsys):
    assert watch.table([], 80, 24) == ["no run yet"]
    (tmp_path / ".net.status.json").write_text("{")
    assert "is not a complete" in watch.row_of(str(tmp_path / "net"), str(tmp_path)).cells["best"]
    assert main(["status", "--watch", str(tmp_path / "net")]) == 2
    assert "is no folder" in capsys.readouterr().err
    assert main(["status", "--watch", "--json", str(tmp_path)]) == 2


@pytest.mark.slow
def test_ctrl_c_ends_watch_cleanly(tmp_path):
    StatusFile(str(tmp_path / "net")).update(now=True, epoch=1, num_epochs=3)
    command = [sys.executable, "-m", "returnn_tf", "status", "--watch", str(tmp_path)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline().endswith(" net: dead, 1/3\n")
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=LONG) == ("", "") and child.returncode == 0

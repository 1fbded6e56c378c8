"""Lines of the log, targets and levels, the progress bar, colour."""

import contextlib
import io
import logging
import os
import sys

import pytest

from returnn_tf.logging import lines
from returnn_tf.logging.levels import level_of, standard_level
from returnn_tf.logging.log import Log
from returnn_tf.logging.memory import process_memory
from returnn_tf.logging.progress_bar import ProgressBar
from returnn_tf.logging.text import bytes_text, hms, paint, printable, wants_color
from tests.waiting import LONG


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        """Return True."""
        return True


@pytest.fixture
def log():
    """Yield a log of its own, closed at the end."""
    log = Log()
    logging.getLogger("returnn_tf").handlers = []
    log.attach()
    yield log
    log.close()


@pytest.mark.parametrize(
    "seconds, text",
    [(0, "0:00:00"), (1738.9, "0:28:58"), (36000, "10:00:00"), (-1, "0:00:00"), (float("inf"), "0:00:00")],
)
def test_hms(seconds, text):
    """Hours, minutes, seconds."""
    assert hms(seconds) == text


@pytest.mark.parametrize(
    "count, text", [(5, "5B"), (1536, "1.5KB"), (3 << 20, "3.0MB"), (5 << 30, "5.0GB"), (1 << 42, "4096.0GB")]
)
def test_bytes(count, text):
    """Sizes for people."""
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    "text, shown",
    [
        ("a b ü 語 \U0001f600", "a b ü 語 \U0001f600"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\nerror: b\r\x08\x7f", "a\\nerror: b\\r\\x08\\x7f"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\u2028b\u2066", "a\\u2028b\\u2066"),
        ("\udcff", "\\udcff"),
        ("co\u00adop \u0645\u200c\u0646", "co\u00adop \u0645\u200c\u0646"),
    ],
)
def test_printable(text, shown):
    """What controls a terminal is shown; letters of all scripts stay."""
    assert printable(text) == shown and printable(shown) == shown
    assert printable("a\n\t\r", keep="\n\t") == "a\n\t\\r"


def test_a_line_does_not_control_the_terminal(log, capsys):
    """Not even if what it says comes from data; it may have several lines of its own."""
    log.write(1, "first \x1b[2J\r\x07\n\tsecond")
    assert "first \\x1b[2J\\r\\x07\n\tsecond" in capsys.readouterr().out


@pytest.mark.parametrize("encoding", ["ascii", "latin1"])
def test_a_stream_that_lacks_letters(log, monkeypatch, encoding):
    """They are written as escapes: a line of the log ends no run."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    log.write(1, "layer 語 \u0142")
    assert raw.getvalue().startswith(b"layer \\u8a9e \\u0142")


def test_process_memory():
    """At least what an interpreter takes."""
    assert process_memory() > 1 << 20


def test_lines():
    """All lines, with their fields."""
    assert lines.phase_text("train", 3) == "train epoch 3"
    assert lines.phase_text("train", 3, pretrain=True) == "pretrain epoch 3"
    assert lines.phase_text("eval", 3, dataset="dev") == "'dev' eval epoch 3"
    assert lines.pass_line("train epoch 1", 2941, 1738.2, 1738.2 * 0.9934) == (
        "train epoch 1, finished after 2941 steps, 0:28:58 elapsed (99.3% computing time)"
    )
    assert lines.pass_line("train epoch 1", 0, 0.0, 0.0).endswith("(0.0% computing time)")
    assert ", finished after 1 steps, " in lines.pass_line("train epoch 1", 1, 1.0, 1.0)
    assert lines.speed_line("train epoch 1", 100.0, 1.0, 0.0, 316.4, ["memory 1MB"]) == (
        "train epoch 1, 1.0% waiting for data, 316 frames/s, memory 1MB"
    )
    assert lines.speed_line("train epoch 1", 100.0, 1.0, 98.5, None, []) == (
        "train epoch 1, 1.0% waiting for data, 98.5% compiling"
    )
    line = lines.step_line(
        "train epoch 1",
        7,
        {"loss": 230.125, "error:output": 0.5, "cost:output": 2.25, "num_seqs": 20, "mem_usage:CPU": "1.5GB"},
        seconds_per_step=0.1234,
        elapsed=10,
        complete=0.25,
    )
    assert line == (
        "train epoch 1, step 7, cost:output 2.25, error:output 0.5, loss 230.125, mem_usage:CPU 1.5GB, num_seqs 20, "
        "0.123 sec/step, elapsed 0:00:10, exp. remaining 0:00:30, complete 25.00%"
    )
    assert lines.step_line("x", 0, {}, seconds_per_step=1, elapsed=1) == "x, step 0, 1.000 sec/step, elapsed 0:00:01"
    assert lines.epoch_line(1, 0.5, {"a": 0.25}, 7) == "epoch 1 score: 0.5 error: 0.25 elapsed: 0:00:07"
    assert lines.epoch_line(1, {"b": 2, "a": 1}, {}, 7) == "epoch 1 score: a 1.0 b 2.0 error: None elapsed: 0:00:07"
    several = {"cost:out/prob": 3.2435822543282202, "cost:ctc": 1e-7}
    assert lines.epoch_line(1, several, {"error:ctc": 12345.678}, 7) == (
        "epoch 1 score: ctc 1e-07 out/prob 3.24358 error: 12345.7 elapsed: 0:00:07"
    )
    partial = {"a": ({}, {}), "b": ({}, {"x": 0.5}), "c": (0.0, {})}
    assert lines.eval_line(partial) == "a: no loss b: error 0.5 c: score 0.0 error None"
    assert lines.start_line("train epoch 1", 0.001) == "start train epoch 1, learning rate 0.001"


def test_time_left_without_the_step_that_made_the_graph():
    """It took 100 of 104 seconds, for 2 of 10 % of the pass."""
    setup = lines.Setup(100.0, 0.02, 50)
    assert lines.time_left(104.0, 0.10, setup) == pytest.approx(4.0 / 0.08 * 0.9)
    assert lines.time_left(100.0, 0.02, setup) is lines.time_left(100.0, None, setup) is None
    line = lines.step_line("x", 0, {}, seconds_per_step=100, elapsed=100, complete=0.02, setup=setup)
    assert line == "x, step 0, 100.000 sec/step, elapsed 0:01:40, complete 2.00%"
    assert lines.progress_line("x", 1, 100.0, complete=0.02, setup=setup) == (
        "x, 1 step, elapsed 0:01:40, complete 2.0%"
    )
    bar = ProgressBar("x", io.StringIO(), visible=False)
    assert bar.parts(1, 0.02, None, 50, 100.0, setup)[1:3] == ["elapsed 0:01:40", "step 1"]
    assert "100 frames/s" in bar.parts(2, 0.04, None, 100, 100.5, setup)


@pytest.mark.parametrize(
    "values, text",
    [
        ({2: 0.5}, ""),
        ({1: 0.5}, ""),
        ({1: 0.5, 2: 0.4}, "dev_score 0.4: best so far (previous best: 0.5 in epoch 1)"),
        ({1: 0.3, 2: 0.4, 3: 0.1}, "dev_score 0.4: not better than 0.3 in epoch 1"),
    ],
)
def test_best_so_far(values, text):
    """Of the deciding score, compared with earlier epochs only."""
    assert lines.best_line("dev_score", values, 2) == text


def test_levels_and_files(log, tmp_path, capsys):
    """Each target shows what is at or below its level; one level counts for all."""
    names = [str(tmp_path / "a" / "x.log"), str(tmp_path / "y.log")]
    log.configure(names, [5, 1, 3])
    for level in range(1, 6):
        log.write(level, "line %d" % level)
    assert log.shows(5)
    log.configure()
    assert not log.shows(4) and log.shows(3)
    assert (tmp_path / "a" / "x.log").read_text() == "".join("line %d\n" % i for i in range(1, 6))
    assert (tmp_path / "y.log").read_text() == "line 1\n"
    assert capsys.readouterr().out == "line 1\nline 2\nline 3\n"
    log.configure(names, [4])
    assert log.shows(4) and not log.shows(5)
    log.warn("careful")
    assert capsys.readouterr().out == "Warning: careful\n"


def test_levels_of_logging():
    """Each level has one of its own there; warnings and errors of modules are level 2, other ones what is next."""
    assert [level_of(standard_level(level)) for level in range(6)] == list(range(6))
    names = ["CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG"]
    assert [level_of(getattr(logging, name)) for name in names] == [2, 2, 2, 3, 4]
    assert [logging.getLevelName(standard_level(level)) for level in range(1, 6)] == [
        "SCORE",
        "NOTICE",
        "INFO",
        "DEBUG",
        "STEP",
    ]


def test_what_is_written_are_records_of_logging(log, caplog):
    """Programs which use the package as a library may handle them, with the text as it is."""
    log.warn("100 % careful")
    log.write(1, "epoch 1 score: 0.5")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "100 % careful"),
        ("SCORE", "epoch 1 score: 0.5"),
    ]


def test_helpers_show_only_warnings(log, tmp_path, capsys):
    """In its own files there is everything."""
    log.become_helper(1, "rank 1/4 on host")
    log.configure([str(tmp_path / "x.log")], [4, 3])
    log.write(1, "score")
    log.write(2, "odd")
    log.warn("careful")
    log.write(1, "for the file", terminal=False)
    assert capsys.readouterr().out == "rank 1/4 on host: odd\nrank 1/4 on host: Warning: careful\n"
    assert (tmp_path / "x.log.rank1").read_text() == "score\nodd\nWarning: careful\nfor the file\n"


def test_nothing_at_level_0(log, capsys):
    """Not even scores and errors."""
    log.configure(verbosity=[0])
    log.write(1, "score")
    logging.getLogger("returnn_tf.x").critical("broken")
    assert not capsys.readouterr().out and not log.shows(1)


def test_once(log, capsys):
    """A line that is written once is, in each run; others may have the same text."""
    log.configure()
    for _ in range(2):
        log.warn("odd", once=True)
        log.write(3, "news", once=True)
        log.write(3, "step")
    log.configure()
    log.warn("odd", once=True)
    assert capsys.readouterr().out == "Warning: odd\nnews\nstep\nstep\nWarning: odd\n"


def test_library_logging(log, capsys):
    """What modules say by logging ends up here, with a level."""
    log.configure()
    logger = logging.getLogger("returnn_tf.some.module")
    logger.warning("odd %d", 3)
    logger.info("news")
    logger.debug("detail")
    assert capsys.readouterr().out == "Warning: odd 3\nnews\n"


@pytest.mark.parametrize("log_format, start", [("default", "x"), ("raw", "x"), ("timed", "[20"), ("verbose", "[20")])
def test_formats(log, log_format, start, capsys):
    """With and without time."""
    log.configure(log_format=log_format)
    log.write(1, "x")
    out = capsys.readouterr().out
    assert out.startswith(start) and out.endswith("x\n")


def test_date_and_command(log, tmp_path):
    """$date in a name; a command that gets the lines."""
    log.configure([str(tmp_path / "run-$date.log"), "|cat > %s" % (tmp_path / "piped")], [3])
    log.write(1, "hello")
    log.close()
    assert (tmp_path / "piped").read_text() == "hello\n"
    assert len(list(tmp_path.glob("run-2*.log"))) == 1


def test_command_that_ends(log):
    """A command that is gone doesn't stop the program."""
    log.configure(["|true"], [3])
    for _ in range(50):
        log.write(1, "x" * 10000)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is full")
def test_a_full_disk_is_reported_once_and_stops_nothing(log, tmp_path, capsys):
    """What can be written to hears of what can't."""
    log.configure(["/dev/full", str(tmp_path / "log")], [3])
    for number in range(3):
        log.write(1, "line %d" % number)
    shown = capsys.readouterr().out
    assert shown == (tmp_path / "log").read_text()
    warning = "Warning: log file '/dev/full' can't be written (No space left on device): lines are missing there\n"
    assert shown.count(warning) == 1 and shown.endswith("line 1\nline 2\n") and not log.lost_terminal


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is full")
def test_a_standard_output_on_a_full_disk(log, tmp_path, monkeypatch, capsys):
    """Files and the standard error hear of it."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        log.configure([str(tmp_path / "log")], [3])
        log.write(1, "hello")
        log.write(1, "again")
        monkeypatch.undo()
        assert log.lost_terminal
        with contextlib.suppress(OSError):
            full.close()
    text = "the standard output can't be written (No space left on device): lines are missing there"
    assert capsys.readouterr().err.count(text) == 1
    assert (tmp_path / "log").read_text() == "hello\nWarning: %s\nagain\n" % text


def test_configure_errors(log, tmp_path):
    """Unknown format, level, a file that can't be."""
    with pytest.raises(ValueError, match="log_format"):
        log.configure(log_format="fancy")
    with pytest.raises(ValueError, match="log_verbosity"):
        log.configure(verbosity=[7])
    (tmp_path / "f").touch()
    with pytest.raises(OSError):
        log.configure([str(tmp_path / "f" / "x.log")])


def test_color_only_on_a_terminal(monkeypatch):
    """NO_COLOR and dumb terminals are respected."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_color(Terminal()) and not wants_color(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_color(Terminal())
    assert paint("x", "red") == "\x1b[31mx\x1b[0m" and paint("x", "red", False) == "x"


def test_progress_bar_text():
    """Share, step, loss, frames per second, time left."""
    bar = ProgressBar("train epoch 3", io.StringIO(), visible=False)
    text = bar.line(0.42, bar.parts(120, 0.42, {"cost:output": 1.2345}, 123456, 10.0))
    assert text.startswith(
        "train epoch 3   42% ########------------  ETA 0:00:13  step 120  score 1.234  12.3k frames/s  mem "
    )
    assert "score a 1.0 b 2.0" in bar.parts(1, None, {"cost:b": 2, "cost:a": 1}, None, 61.0)
    assert bar.line(None, bar.parts(1, None, None, None, 61.0)).startswith("train epoch 3  elapsed 0:01:01  step 1")


def test_progress_bar_of_a_narrow_terminal(monkeypatch):
    """What does not fit is left out whole, the least important first; never the time left."""
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))
    out = io.StringIO()
    bar = ProgressBar("pretrain epoch 123", out, visible=True)
    bar.draw(0.42, bar.parts(12345, 0.42, {"cost:output": 1.2345}, 123456, 10.0))
    assert out.getvalue() == "\r\x1b[Kpretrain epoch 123   42% ########------------  ETA 0:00:13  step 12345"


def test_bar_on_a_terminal(log, monkeypatch):
    """The bar gives way to lines; it is not there without a terminal, nor at level 5, which shows every step."""
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(ProgressBar, "INTERVAL", LONG)
    log.configure(verbosity=[4])
    bar = log.progress("train epoch 1")
    bar.update(1, 0.5, {"cost:a": 0.1}, 100)
    bar.update(2, 0.6, {"cost:a": 0.1}, 100)  # too soon
    log.write(5, "the line of a step")
    assert out.getvalue().count("\x1b[K") == 1  # the bar stays
    log.write(3, "news")
    bar.close()
    text = out.getvalue()
    assert text.count("train epoch 1") == 1 and text.endswith("\r\x1b[Knews\n") and "line of a step" not in text
    log.configure(verbosity=[5])
    log.progress("train epoch 2").update(1, 0.5, {"cost:a": 0.1}, 100)
    log.write(5, "the line of a step")
    assert out.getvalue()[len(text) :] == "the line of a step\n"
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    log.progress("x").update(1, 0.5)
    assert sys.stdout.getvalue() == ""


class Clock:
    """Seconds which pass only when they are told to."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


def _steps(log, clock, count):
    bar = log.progress("train epoch 1")
    for step in range(1, count + 1):
        clock.now += 20.0
        bar.update(step, step / 10, {"cost:a": 2.5}, 1000)
    bar.close()


LINE = "train epoch 1, 3 steps, score 2.5, elapsed 0:01:00, exp. remaining 0:02:20, complete 30.0%\n"


def test_a_line_each_minute_where_nobody_sees_the_bar(log, monkeypatch, capsys):
    """By default; not so soon in a pass."""
    clock = Clock(monkeypatch)
    log.configure()
    _steps(log, clock, 2)
    assert capsys.readouterr().out == ""
    _steps(log, clock, 7)
    assert capsys.readouterr().out == LINE + (
        "train epoch 1, 6 steps, score 2.5, elapsed 0:02:00, exp. remaining 0:01:20, complete 60.0%\n"
    )


def test_a_file_gets_the_line_beside_the_bar(log, tmp_path, monkeypatch):
    """The terminal shows the bar only."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(sys, "stdout", Terminal())
    log.configure([str(tmp_path / "log")])
    _steps(log, clock, 3)
    assert (tmp_path / "log").read_text() == LINE and LINE not in sys.stdout.getvalue()


@pytest.mark.parametrize("level", [2, 5])
def test_no_such_line_at_other_levels(log, monkeypatch, capsys, level):
    """At level 5 each step has a line of its own."""
    clock = Clock(monkeypatch)
    log.configure(verbosity=[level])
    _steps(log, clock, 3)
    assert capsys.readouterr().out == ""

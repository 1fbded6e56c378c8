"""A RASR that does not start, dies, hangs, or sends something else: one error, in time, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.rasr.processes import process as rasr_process
from tests.rasr.test_extern import EMULATOR, dataset_of, tags
from tests.waiting import LONG, until

pytestmark = pytest.mark.own_process


def _runs(pid):
    """Return whether a process runs; one that is dead but not waited for does not."""
    try:
        return Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between opening and reading
        return False


def _ends(pid):
    until(lambda: not _runs(pid), "RASR is left")
    return True


def _written(path):
    return Path(path).exists() and Path(path).read_text()


def _limit_only(monkeypatch, what):
    """Let the time limit be for one message: what comes before it may take as long as the machine needs."""
    receive = rasr_process.RasrProcess.receive

    def receive_in_time(self, purpose, **how):
        limit = self.timeout
        if purpose == what:
            until(lambda: _written("pid"))
        else:
            self.timeout = LONG
        try:
            return receive(self, purpose, **how)
        finally:
            self.timeout = limit

    monkeypatch.setattr(rasr_process.RasrProcess, "receive", receive_in_time)


@pytest.mark.parametrize(
    "fail, options, text",
    [
        ("start", {}, r"at the start of epoch 1: RASR ended before its dims, with exit code 3"),
        ("mid", {}, r"after sequence 'corp/rec0/0' of epoch 1: RASR ended .* exit code 5(.|\n)*cache failed"),
        ("kill", {}, r"RASR ended .* after sequence 'corp/rec0/0', with signal 9 \(SIGKILL\)"),
        ("noexit", {}, r"RASR ended before the end, after sequence 'corp/rec2/5', with exit code 0"),
        ("exit code", {}, r"RASR failed after its last sequence, with exit code 7"),
        ("unknown", {}, r"something else than expected: a message is \('hello', None\)"),
        ("no tuple", {}, r"something else than expected: a message is \['data'\]"),
        ("garbage", {}, r"something else than expected(.|\n)*must not set pymod-path"),
        ("strange dims", {}, r"the dims are \(\('2', None, 1\),\)"),
        ("code", {}, r"it contains posix.getcwd"),
        ("short", {}, r"sequence 'corp/rec0/0': its alignment has 2 entries for 3 frames"),
        ("", {"reduce_target_factor": 2}, r"its alignment has 3 entries for 2 frames \(3 features, .* 2\)"),
        ("dim", {}, r"sequence 'corp/rec0/0': its features are of shape \[2, 3\], not \[3, frames\]"),
        ("not UTF-8", {}, r"sequence 'corp/rec0/0': its 'orth' is not UTF-8"),
        ("hang", {"rasr_timeout": 0.3}, r"RASR hangs: for 0.3 s it has not sent the first sequence"),
        ("silent", {"rasr_timeout": 0.3}, r"RASR hangs: for 0.3 s it has not sent its dims"),
    ],
)
def test_failures(fail, options, text, folder, monkeypatch):
    if "rasr_timeout" in options:
        _limit_only(monkeypatch, "its dims" if fail == "silent" else "the first sequence")
    start = time.monotonic()
    with pytest.raises(DataError, match=text):
        tags(dataset_of("--fake.pid=pid", fail=fail, **options))
    assert time.monotonic() - start < LONG
    assert _ends(int(Path("pid").read_text()))


def test_errors_show_output_log_and_command(folder):
    with pytest.raises(DataError) as error:
        tags(dataset_of("--*.log-channel.file=sprint.log", fail="mid"))
    text = str(error.value)
    assert "Its last output:\n  reading of the feature cache failed" in text
    assert "The end of its log sprint.log:\n  configuration read\n  CRITICAL ERROR: mid" in text
    assert "Its command: %s -I -S %s --fake.corpus=corpus.json" % (sys.executable, EMULATOR) in text
    assert text.count("dataset 'ExternSprintDataset'") == 1


def test_errors_in_our_module_are_shown(folder):
    with pytest.raises(DataError, match=r"exit code 1(.|\n)*use --\*.target-mode=target-generic"):
        tags(dataset_of("--*.target-mode=forward-only", mode="trainer"))


@pytest.mark.parametrize(
    "program, text",
    [
        ("nothing", "the program 'nothing' does not exist"),
        ("corpus.json", "the program 'corpus.json' is not executable"),
        ([], "must be the path of a program"),
        (["/bin/sh", ""], "must be the path of a program"),
    ],
)
def test_programs(program, text, folder):
    error = DataError if isinstance(program, str) else ConfigError
    with pytest.raises(error, match="option 'sprintTrainerExecPath': .*" + text):
        dataset_of(sprintTrainerExecPath=program)


def test_a_program_that_is_none(folder):
    (folder / "empty").write_text("")
    (folder / "empty").chmod(0o755)
    with pytest.raises(DataError, match="exit code 127(.|\n)*empty can't be started: Exec format error"):
        tags(dataset_of(sprintTrainerExecPath="./empty"))


@pytest.mark.parametrize(
    "options, text",
    [
        ({"sprintConfigStr": "'"}, "option 'sprintConfigStr': No closing quotation"),
        ({"partition_epoch": 2, "partitionEpoch": 2}, "not both"),
        ({"repeat_epoch": 2}, "repeat_epoch"),
        ({"shuffle_frames_of_nseqs": 2}, "shuffle_frames_of_nseqs"),
        ({"input_stddev": 0}, "input_stddev"),
        ({"bpe": 3}, "option 'bpe': it must be a dict or a vocabulary"),
        ({"target_maps": {"orth": 3}}, r"target_maps\['orth'\] must be a dict or the name of a file"),
        ({"orth_post_process": "lowercas"}, "Did you mean 'lowercase'"),
        ({"sprintConfigString": ""}, "Did you mean 'sprintConfigStr'"),
    ],
)
def test_mistakes_in_options(options, text, folder):
    with pytest.raises(ConfigError, match=text):
        tags(dataset_of(**options))


SORTED = "--*.segment-order-sort-by-time-length=true"


@pytest.mark.parametrize(
    "words, seq_list, text",
    [
        ("", ["corp/rec0/0", "x"], "exit code 1(.|\n)*segment x of the segment order is not in the corpus"),
        (SORTED, ["corp/rec0/1", "corp/rec0/0"], "number 0 of the list is 'corp/rec0/1'"),
        ("", [], "exit code 1(.|\n)*the whitelist is empty"),
    ],
)
def test_lists_that_rasr_does_not_follow(words, seq_list, text, folder):
    with pytest.raises(DataError, match=text):
        tags(dataset_of(words), seq_list=seq_list)


def test_an_empty_epoch(folder):
    with pytest.raises(DataError, match="ended without any sequence. .* partition_epoch=7 is too large"):
        tags(dataset_of(partition_epoch=7), 7)


def test_dims_that_change(folder):
    dataset = dataset_of()
    assert dataset.dims == (2, 5)
    dataset.opts.sprintConfigStr += " --*.trainer-output-dimension=6"
    with pytest.raises(DataError, match="RASR now has 2 features and 6 classes, but 2 and 5 when"):
        tags(dataset, 2)


@pytest.mark.slow
def test_rasr_waits_until_its_sequences_are_needed(folder, monkeypatch):
    """Memory stays bounded: RASR can't run ahead."""
    started = []
    start = rasr_process.RasrProcess.__init__

    def start_recorded(self, *args, **kwargs):
        started.append(self)
        start(self, *args, **kwargs)

    monkeypatch.setattr(rasr_process.RasrProcess, "__init__", start_recorded)
    sequences = dataset_of("--fake.pid=pid", fail="many").sequences()
    next(sequences)
    pid = int(Path("pid").read_text())
    inbox = started[-1]._inbox
    until(lambda: len(inbox._messages) == rasr_process.MAX_MESSAGES)
    for _ in range(500):
        next(sequences)
        assert len(inbox._messages) <= rasr_process.MAX_MESSAGES
    assert _runs(pid)
    sequences.close()  # an epoch that is left ends RASR
    assert _ends(pid)


_PARENT = """
import sys
from returnn_tf.datasets import Dataset
words = "--fake.corpus=corpus.json --fake.pid=pid --fake.fail=%s"
program = ["/bin/sh", "-c", sys.argv[1]] if sys.argv[1] else [sys.executable, "-I", "-S", sys.argv[2]]
options = {"sprintTrainerExecPath": program, "sprintConfigStr": words}
next(Dataset.from_config({"class": "ExternSprintDataset", **options}).sequences())
"""


@pytest.mark.parametrize("wrapper", ["", '"%s" -I -S %s "$0" "$@" & wait'], ids=["program", "wrapper"])
def test_no_process_is_left_behind(wrapper, folder):
    """Also if the parent is killed while RASR does nothing, and if RASR is started by another program."""
    wrapper = wrapper and wrapper % (sys.executable, EMULATOR)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = _PARENT % "hang"
    parent = subprocess.Popen([sys.executable, "-c", code, wrapper, EMULATOR], env=environment)
    until(lambda: _written("pid"))
    pid = int(Path("pid").read_text())
    assert _runs(pid) and os.getpgid(pid) != os.getpgid(0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert _ends(pid)

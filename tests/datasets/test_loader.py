"""BatchLoader: the same batches from another process, and nothing left behind whatever happens."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from unittest.mock import Mock

import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.config.errors import FileDataError, OptionError
from returnn_tf.datasets import BatchLoader, Dataset, HDFDataset
from returnn_tf.datasets.processes.process import ERRORS, ForkedProcess, pickled
from returnn_tf.datasets.processes.worker import describe_error
from returnn_tf.datasets.synthetic.tasks import Task12AXDataset
from returnn_tf.datasets.text.lm import InvalidSequence
from tests.datasets.recorded import ROOT
from tests.waiting import LONG, until

pytestmark = pytest.mark.own_process

TASK = {"class": "Task12AX", "num_seqs": 30, "name": "train"}


class Faulty(Task12AXDataset):
    """Fails for one sequence."""

    def read(self, index, epoch, keys):
        """Raise for sequence 7."""
        if index == 7:
            raise KeyError("oh")
        return super().read(index, epoch, keys)


class Deadly(Task12AXDataset):
    """Ends the process which reads it."""

    def read(self, index, epoch, keys):
        """As if killed for lack of memory."""
        os.kill(os.getpid(), signal.SIGKILL)


class Slow(Task12AXDataset):
    """Takes its time."""

    def read(self, index, epoch, keys):
        """Wait a little."""
        time.sleep(0.02)
        return super().read(index, epoch, keys)


def _forked(spec):
    """Return the same dataset, in a form which cannot be pickled."""
    return Dataset.from_config({**spec, "seq_ordering": lambda **_: "default"})


def _assert_same(got, expected):
    got, expected = list(got), list(expected)
    assert [batch.slices for batch in got] == [batch.slices for batch in expected]
    for one, other in zip(got, expected):
        assert (one.seq_tags, one.number, one.complete) == (other.seq_tags, other.number, other.complete)
        assert set(one.feed) == set(other.feed)
        for key in one.feed:
            assert one.feed[key].dtype == other.feed[key].dtype
            np.testing.assert_array_equal(one.feed[key], other.feed[key])


def _is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        with open("/proc/%d/stat" % pid) as handle:
            return handle.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended just now
        return False


@pytest.mark.parametrize("make", [Dataset.from_config, _forked], ids=["fresh", "forked"])
def test_same_batches(make):
    dataset = make(TASK)
    options = {"batch_size": 300, "max_seqs": 4}
    with BatchLoader(dataset, prefetch=2) as loader:
        assert isinstance(loader._process, ForkedProcess if make is _forked else subprocess.Popen)
        for epoch in (1, 2):
            batches = loader.batches(epoch=epoch, **options)
            _assert_same(batches, dataset.batches(epoch=epoch, **options))
            assert list(batches) == []
        assert loader.batch_stats.num_used == 30
        _assert_same(loader.batches(epoch=1, start_batch=3, **options), list(dataset.batches(epoch=1, **options))[3:])
        pid = loader.pid
    assert not _is_alive(pid)


def test_hdf_files_which_were_open_before():
    dataset = HDFDataset(files=[str(ROOT / "hdf" / "simple_dense.hdf")], seq_ordering=lambda epoch: "random")
    expected = list(dataset.batches(epoch=1, batch_size=20))
    with BatchLoader(dataset) as loader:
        _assert_same(loader.batches(epoch=1, batch_size=20), expected)
        _assert_same(dataset.batches(epoch=1, batch_size=20), expected)


def test_position_is_where_to_go_on():
    dataset = Dataset.from_config(TASK)
    with BatchLoader(dataset) as loader:
        batches = loader.batches(epoch=3, batch_size=200)
        first = [next(batches), next(batches)]
        assert batches.position == 2
        rest = loader.batches(epoch=3, batch_size=200, start_batch=batches.position)
        _assert_same(first + list(rest), dataset.batches(epoch=3, batch_size=200))


def test_an_epoch_may_be_left_early():
    dataset = Dataset.from_config({"class": "Task12AX"})  # endless
    with BatchLoader(dataset, prefetch=2) as loader:
        for epoch in range(1, 6):
            batches = loader.batches(epoch=epoch, batch_size=200)
            expected = dataset.batches(epoch=epoch, batch_size=200)
            for _ in range(epoch):
                _assert_same([next(batches)], [next(expected)])
            batches.close()
            assert list(batches) == []


@pytest.mark.slow
def test_it_reads_ahead_but_not_without_limit():
    with BatchLoader(Slow(num_seqs=200), prefetch=3) as loader:
        batches = loader.batches(epoch=1, batch_size=1000, max_seqs=1)
        next(batches)
        for _ in range(5):
            until(lambda: len(loader._buffer._items) == 3, "it does not read ahead")
            time.sleep(0.1)  # in which it could read five
            assert len(loader._buffer._items) == 3
            for _ in range(3):
                next(batches)


@pytest.mark.slow
@pytest.mark.parametrize("endless", [False, True])
def test_errors_are_raised_here_with_dataset_and_tag(endless):
    dataset = Faulty(name="train", num_seqs=None if endless else 20)
    with BatchLoader(dataset) as loader:
        for _ in range(2):  # and the loader goes on to work
            batches = loader.batches(epoch=1, batch_size=1000, max_seqs=2)
            assert [next(batches).seq_tags for _ in range(3)][-1] == ["seq-4", "seq-5"]
            with pytest.raises(DataError, match="dataset 'train', sequence 'seq-7' .position 7 .*: KeyError: 'oh'"):
                next(batches)
            assert list(batches) == []


def test_errors_while_making_the_dataset(tmp_path):
    path = tmp_path / "a.hdf"
    path.write_bytes((ROOT / "hdf" / "simple_dense.hdf").read_bytes())
    dataset = HDFDataset(files=[str(path)])
    path.unlink()
    with BatchLoader(dataset) as loader, pytest.raises(DataError, match="HDF file .* does not exist"):
        next(loader.batches(epoch=1))


def test_errors_in_options():
    with BatchLoader(Dataset.from_config(TASK)) as loader:
        with pytest.raises(ConfigError, match="Did you mean 'batch_size'"):
            next(loader.batches(epoch=1, batch_sze=3))
        with pytest.raises(ConfigError, match="batch options of dataset 'train' cannot be sent"):
            loader.batches(epoch=1, chunking=lambda **_: None)
        assert next(loader.batches(epoch=1, batch_size=100)).number == 0


def test_death_of_the_loading_process():
    with BatchLoader(Deadly(name="train", num_seqs=3)) as loader:
        with pytest.raises(DataError, match="dataset 'train' ended unexpectedly: signal 9, .*memory"):
            next(loader.batches(epoch=1))
        with pytest.raises(DataError, match="ended unexpectedly"):
            next(loader.batches(epoch=2))


def test_closed_loader():
    loader = BatchLoader(Dataset.from_config(TASK))
    loader.close()
    loader.close()
    with pytest.raises(DataError, match="loader of dataset 'train' is closed"):
        loader.batches(epoch=1)


def test_closing_while_reading():
    loader = BatchLoader(Dataset.from_config({"class": "Task12AX"}), prefetch=1)
    batches = loader.batches(epoch=1, batch_size=200)
    next(batches)
    pid = loader.pid
    start = time.monotonic()
    loader.close()
    assert time.monotonic() - start < LONG
    assert not _is_alive(pid)
    with pytest.raises(DataError):
        list(batches)


@pytest.mark.slow
def test_forgotten_loader_ends():
    loader = BatchLoader(Dataset.from_config(TASK))
    batches = loader.batches(epoch=1, batch_size=200)
    next(batches)
    pid = loader.pid
    del loader, batches
    gc.collect()
    until(lambda: not _is_alive(pid), "it goes on")


def test_warnings_come_through(caplog):
    with caplog.at_level(logging.WARNING, "returnn_tf"), BatchLoader(Dataset.from_config(TASK)) as loader:
        list(loader.batches(epoch=1, batch_size=20))
    (record,) = caplog.records
    assert "more than batch_size 20" in record.getMessage()
    assert loader.batch_stats.num_oversize > 10


def test_signals_of_the_job_do_not_stop_it():
    dataset = Dataset.from_config(TASK)
    with BatchLoader(dataset, prefetch=1) as loader:
        batches = loader.batches(epoch=1, batch_size=200)
        first = next(batches)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            os.kill(loader.pid, number)
        _assert_same([first] + list(batches), dataset.batches(epoch=1, batch_size=200))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_nor_do_signals_at_its_very_beginning(number):
    dataset = Dataset.from_config(TASK)
    with BatchLoader(dataset) as loader:
        os.kill(loader.pid, number)
        _assert_same(loader.batches(epoch=1, batch_size=200), dataset.batches(epoch=1, batch_size=200))


@pytest.mark.slow
def test_from_config(tmp_path):
    path = tmp_path / "my.config"
    path.write_text(
        textwrap.dedent("""\
        #!/usr/bin/env returnn-tf
        from returnn_tf.datasets import register_dataset
        from returnn_tf.datasets.synthetic.tasks import Task12AXDataset
        @register_dataset()
        class MyTask(Task12AXDataset):
            def tag(self, index):
                return "mine-%d" % index
        def order(epoch, **kwargs):
            return "random"
        train = lambda: {"class": "MyTask", "num_seqs": count, "seq_ordering": order}
        count = 3
        """)
    )
    config = Config.from_file(str(path))
    config.set("count", 20)
    with BatchLoader.from_config(config, "train") as loader:
        tags = [tag for batch in loader.batches(epoch=1, batch_size=1000) for tag in batch.seq_tags]
        assert isinstance(loader._process, subprocess.Popen)
    assert sorted(tags) == sorted("mine-%d" % i for i in range(20))
    assert tags != sorted(tags)
    with BatchLoader.from_config(config, "trian") as loader, pytest.raises(ConfigError, match="Did you mean 'train'"):
        next(loader.batches(epoch=1))


def test_what_can_be_pickled():
    assert pickled(Dataset)[0] is not None
    content, reason = pickled(lambda: None)
    assert content is None and reason
    with pytest.raises(ConfigError, match="prefetch is 0"):
        BatchLoader(Dataset.from_config(TASK), prefetch=0)


_SCRIPT = """\
import os, sys, time
from returnn_tf.datasets import BatchLoader, Dataset
spec = {"class": "Task12AX", "name": "train"}
if %(forked)r:
    spec["seq_ordering"] = lambda **_: "default"
loader = BatchLoader(Dataset.from_config(spec), prefetch=2)
batches = loader.batches(epoch=1, batch_size=500)
next(batches)
print(loader.pid, flush=True)
%(end)s
"""


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("forked", [False, True])
@pytest.mark.parametrize("end", ["time.sleep(1000)", "pass", "raise ValueError", "os._exit(3)"])
def test_it_does_not_outlive_its_parent(forked, end, tmp_path):
    """Also run as a script without main guard: the loading process must not execute it again."""
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT % {"forked": forked, "end": end})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    if "sleep" in end:
        assert _is_alive(pid)
        process.kill()
    process.wait(timeout=LONG)
    process.stdout.close()
    until(lambda: not _is_alive(pid), "it goes on")


def test_interrupted_while_it_waits(monkeypatch):
    """The loader stops that epoch, so that another one can be loaded."""
    with BatchLoader(Dataset.from_config(TASK)) as loader:
        batches = loader.batches(1, batch_size=100, max_seqs=1)
        next(batches)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(loader, "_next", Mock(side_effect=KeyboardInterrupt))
            next(batches)
        assert sum(batch.num_seqs for batch in loader.batches(2, batch_size=100, max_seqs=1)) == 30


@pytest.mark.parametrize("name", ["returnn_tf.datasets", "returnn_tf.datasets.processes.worker"])
def test_tensorflow_is_not_imported(name):
    code = "import sys, %s; sys.exit('tensorflow' in sys.modules)" % name
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize(
    "error,expected",
    [
        (FileDataError("x"), ("DataError", "x", "data-files")),
        (InvalidSequence("x"), ("DataError", "x", "text-data")),
        (OptionError("x"), ("ConfigError", "x", "options")),
    ],
)
def test_errors_are_sent_by_the_base_of_their_class(error: Exception, expected: tuple[str, str, str]) -> None:
    """The parent only knows the two bases; the topic comes with them."""
    assert describe_error(error) == expected and expected[0] in ERRORS

"""MultiProcDataset: several processes read a dataset."""

import contextlib
import os
import signal
import threading

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import BatchLoader, Dataset
from returnn_tf.datasets.core.share import Share
from returnn_tf.datasets.processes.process import WorkerProcess
from returnn_tf.logging.log import log
from tests.datasets.combining_cases import cases, compare, with_paths
from tests.datasets.streams import Streamed
from tests.datasets.test_combined import static
from tests.waiting import until

pytestmark = pytest.mark.own_process

CASES = cases("MultiProcDataset")


def multi_proc(inner, **options):
    """Return the dataset, given as a function so that the processes are forked, which takes no time."""
    options = {"num_workers": 2, "buffer_size": 2, "name": "train", **options}
    return Dataset.from_config({"class": "MultiProcDataset", "dataset": lambda: inner, **options})


def pids(dataset):
    return [pid for processes in dataset._idle for pid in processes.pids]


def tags(dataset, epoch=1, **options):
    return [seq.tag for seq in dataset.sequences(epoch, **options)]


class LogsInThread:
    """Answers with a large message while another thread writes to the log, as one that copies files does."""

    def serve(self, connection):
        def write():
            for _ in range(300):
                log.write(3, "x" * 5000)

        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(30):
            connection.send(("large", np.arange(100_000)))
        thread.join()
        connection.send(("end",))
        connection.recv()


@pytest.mark.slow
def test_log_of_another_thread(capsys):
    """Its lines come between the messages, not within them."""
    with contextlib.closing(WorkerProcess(LogsInThread(), "process")) as process:
        received = list(iter(process.receive, ("end",)))
    assert len(received) == 30
    for _, values in received:
        np.testing.assert_array_equal(values, np.arange(100_000))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_recorded(name):
    """Sequences and format are the recorded ones."""
    folder, case = CASES[name]
    compare(Dataset.from_config(with_paths(case["options"], folder)), folder, case)


def test_same_as_without_processes():
    """Orders, explicit ones too, batches and their resumption, shares and options of the outer dataset."""
    spec = static([3, 1, 4, 1, 5, 9, 2, 6])
    plain = Dataset.from_config(
        {**spec, "seq_ordering": "random", "partition_epoch": 2, "chunking": "2:1", "window": 3}
    )
    dataset = multi_proc(spec, seq_ordering="random", partition_epoch=2, chunking="2:1", window=3, num_workers=3)
    for how in ({}, {"seq_list": ["seq-3", "seq-0", "seq-3"]}, {"seq_order": [7]}, {"start": 2}, {"seq_order": []}):
        for epoch in (1, 2):
            pairs = list(zip(plain.sequences(epoch, **how), dataset.sequences(epoch, **how), strict=True))
            for one, other in pairs:
                assert (one.tag, one.index, one.position) == (other.tag, other.index, other.position)
                np.testing.assert_array_equal(one.data["data"], other.data["data"])
    options = {"batch_size": 4, "max_seqs": 2, "seq_drop": 0.3}
    for how in ({}, {"start_batch": 3}, {"share": Share(1, 2)}, {"max_seq_length": 1}):
        pairs = zip(plain.batches(3, **options, **how), dataset.batches(3, **options, **how), strict=True)
        for one, other in pairs:
            assert (one.slices, one.seq_tags, one.number, one.complete) == (
                *(other.slices, other.seq_tags, other.number, other.complete),
            )
            np.testing.assert_array_equal(one.feed["data"], other.feed["data"])
    assert len(pids(dataset)) == 3, "the processes are kept"


def test_sequences_that_are_left_out(tmp_path):
    """What an inner dataset of the inner one leaves out is an error, not a shift of the others."""
    (tmp_path / "text").write_text("a\nb\na\na\n")
    text = {"class": "LmDataset", "corpus_file": str(tmp_path / "text"), "error_on_invalid_seq": False}
    text["orth_vocab"] = {"labels": ["a"], "unknown_label": None}
    dataset = multi_proc({"class": "PostprocessingDataset", "dataset": text, "map_seq": lambda seq, **_: seq})
    with pytest.raises(DataError, match="sequence 'line-1' .*: it is left out when it is read; this needs sharding_m"):
        tags(dataset)


@pytest.mark.slow
def test_dedicated():
    """Shards alternate; also of streams, of uneven sizes, and if this is a shard itself; nothing is lost."""
    spec = {"class": Streamed, "num": 7}
    dataset = multi_proc(spec, num_workers=3, sharding_method="dedicated")
    assert tags(dataset) == ["s%d" % i for i in range(7)]
    assert dataset.is_stream and dataset.num_seqs is None
    parts = [tags(multi_proc(spec, sharding_method="dedicated", _num_shards=2, _shard_index=i)) for i in range(2)]
    assert sorted(parts[0] + parts[1]) == ["s%d" % i for i in range(7)] and abs(len(parts[0]) - len(parts[1])) == 1
    uneven = static([1] * 5, partition_epoch=2)
    dataset = multi_proc(uneven, sharding_method="dedicated", num_workers=3)
    assert sorted(tags(dataset, 1) + tags(dataset, 2)) == ["seq-%d" % i for i in range(5)]
    assert tags(dataset, seq_list=["seq-4", "seq-1"]) == ["seq-4", "seq-1"]


def test_an_epoch_that_is_left():
    """The next one is not mixed with the rest of it, and two at a time don't disturb each other."""
    dataset = multi_proc(static([1] * 40), buffer_size=1)
    sequences = dataset.sequences(1)
    first = [next(sequences).tag for _ in range(3)]
    assert tags(dataset, seq_order=[30, 31]) == ["seq-30", "seq-31"]
    assert [*first, *(seq.tag for seq in sequences)] == ["seq-%d" % i for i in range(40)]
    sequences = dataset.sequences(1)
    next(sequences)
    sequences.close()
    assert tags(dataset) == ["seq-%d" % i for i in range(40)]
    assert len(pids(dataset)) == 4


def test_failing_sequences_and_processes_that_die():
    """One error that says which process, and no process is left."""
    dataset = multi_proc({"class": Streamed, "fails_at": 1}, sharding_method="dedicated")
    with pytest.raises(DataError, match="after sequence 's0' of epoch 1: RuntimeError: no more"):
        tags(dataset)
    dataset = multi_proc(static([1] * 30), buffer_size=1)
    tags(dataset)
    found = pids(dataset)
    sequences = dataset.sequences(1)
    next(sequences)
    os.kill(found[1], signal.SIGKILL)
    with pytest.raises(DataError, match="process 1 of dataset 'train' ended unexpectedly: signal 9"):
        list(sequences)
    _assert_gone(found)
    assert len(tags(dataset)) == 30, "the next epoch starts anew"
    found = pids(dataset)
    del dataset, sequences
    _assert_gone(found)


@pytest.mark.parametrize("make", ["readers", "mappers"])
def test_no_process_outlives_the_loading_process(make):
    """A loading process is killed at the end, and may be killed at any time; those that it started end, too."""
    if make == "readers":
        dataset = multi_proc(static([1] * 200), num_workers=2, buffer_size=1)
    else:
        options = {"dataset": static([1] * 200), "map_seq": lambda data: data, "num_workers": 2}
        dataset = Dataset.from_config({"class": "PostprocessingDataset", **options})
    with BatchLoader(dataset) as loader:
        next(loader.batches(1, batch_size=1))
        found = _children(loader.pid)
        assert len(found) == 2
        os.kill(loader.pid, signal.SIGKILL)
        _assert_gone(found)


def _children(parent):
    """Return the process ids of the children of a process."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open("/proc/%s/stat" % name) as file:
                if int(file.read().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(name))
    return found


def _assert_gone(found):
    until(lambda: not any(os.path.exists("/proc/%d" % pid) for pid in found), "a process is left")


@pytest.mark.parametrize(
    "inner, options, text",
    [
        ({"class": Streamed}, {}, "needs a dataset with random access"),
        ({"class": "Task12AX"}, {}, "needs a dataset with random access"),
        (
            {"class": "Task12X"},
            {},
            "'train' .MultiProcDataset.: inner dataset 'train': unknown dataset class 'Task12X'",
        ),
        (static([1]), {"num_workers": 0}, "num_workers"),
        (static([1]), {"sharding_method": "x"}, "sharding_method"),
        (
            {
                "class": "LmDataset",
                "corpus_file": __file__,
                "orth_vocab": {"labels": ["UNK"]},
                "error_on_invalid_seq": False,
            },
            {},
            "error_on_invalid_seq=False needs sharding_method 'dedicated'",
        ),
        (static([1]), {"shuffle_frames_of_nseqs": 2}, "not possible with several processes"),
    ],
)
def test_bad_options(inner, options, text):
    """A mistake shows when the dataset is made."""
    with pytest.raises(ConfigError, match=text):
        multi_proc(inner, **options)

"""PostprocessingDataset: functions of a config applied to sequences."""

import itertools
import os
import signal

import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.combining.mapper import LaplaceOrdering, NamedTensor, Sequential, TensorDict
from returnn_tf.datasets.core.share import Share
from tests.datasets.combining_cases import ROOT, cases, compare
from tests.datasets.streams import Streamed
from tests.datasets.test_combined import static

CASES = cases("PostprocessingDataset")


def _times_two(data, **_):
    data["data"].raw_tensor = data["data"].raw_tensor * 2
    return data


def _add_random(data, *, rng, epoch, seq_idx, **_):
    data["data"].raw_tensor = data["data"].raw_tensor + rng.randint(0, 100) + 1000 * epoch + seq_idx
    return data


def _drop(sequences, *, rng, **_):
    for data in sequences:
        if rng.randint(0, 3) != 0:
            yield data


def _as_float64(data, **_):
    data["data"].raw_tensor = data["data"].raw_tensor.astype("float64")
    return data


FUNCTIONS = {
    "multiplies data by 2": _times_two,
    "adds rng.randint(0,100) + 1000*epoch + seq_idx to data": _add_random,
    "drops a sequence if rng.randint(0,3)==0": _drop,
    "makes data float64": _as_float64,
    "LaplaceOrdering(3)": LaplaceOrdering(3),
    "LaplaceOrdering(num_seqs_per_bin=3)": LaplaceOrdering(num_seqs_per_bin=3),
    "f": _times_two,
    "g": _drop,
}


@pytest.mark.parametrize("name", CASES)
def test_recorded(name):
    """Sequences and format are the recorded ones."""
    folder, case = CASES[name]
    options = dict(case["options"], dataset={"class": "HDFDataset", "files": [str(ROOT / folder / "feat.hdf")]})
    for key in ("map_seq", "map_seq_stream"):
        if key in options:
            options[key] = FUNCTIONS[options[key]]
    if "exception" in case:
        with pytest.raises((ConfigError, DataError)):
            list(Dataset.from_config(options).sequences(1))
        return
    dataset = Dataset.from_config(options)
    compare(dataset, folder, case)
    if "num_seqs_after" in case:
        assert dataset.num_seqs is None and dataset.num_seqs_of_last_epoch == case["num_seqs_after"]


def processed(inner=None, **options):
    inner = inner or static([3, 1, 4, 1, 5])
    return Dataset.from_config({"class": "PostprocessingDataset", "dataset": inner, "name": "train", **options})


def tags(dataset, epoch=1, **options):
    return [seq.tag for seq in dataset.sequences(epoch, **options)]


def values(dataset, epoch=1, **options):
    return [float(seq.data["data"][0, 0]) for seq in dataset.sequences(epoch, **options)]


def test_what_functions_get():
    """All keywords, named tensors, and arrays of their own."""
    seen = []

    def map_seq(data, *, seq_idx, epoch, rng, **others):
        assert isinstance(rng, np.random.RandomState)
        tensor = data["data"]
        seen.append((seq_idx, epoch, data["seq_tag"].raw_tensor.item(), int(data["seq_idx"].raw_tensor)))
        assert (tensor.name, tensor.dtype, tensor.shape, tensor.sparse) == ("data", "float32", (None, 2), False)
        assert data.data["data"] is tensor and set(data) == {"data", "seq_tag", "seq_idx", "complete_frac"}
        tensor.raw_tensor += 1
        return data

    spec = static([3, 1])
    dataset = processed(spec, map_seq=map_seq)
    assert values(dataset) == values(dataset) == [1, 101]
    assert seen[:2] == [(0, 1, "seq-0", 0), (1, 1, "seq-1", 1)]
    assert spec["data"][0]["data"][0, 0] == 0
    fractions = []
    list(processed(map_seq=lambda data: fractions.append(float(data["complete_frac"].raw_tensor)) or data).sequences(1))
    np.testing.assert_allclose(fractions, [0.2, 0.4, 0.6, 0.8, 1.0])


def test_order_is_that_of_the_inner_dataset():
    """With map_seq also explicit orders, number, tags and progress."""
    inner = static([3, 1, 4, 1, 5], seq_ordering="reverse", partition_epoch=2)
    dataset = processed(inner, map_seq=_times_two)
    assert not dataset.is_stream and dataset.num_seqs == 5 and dataset.tag(3) == "seq-3"
    assert [tags(dataset, epoch) for epoch in (1, 2)] == [["seq-4", "seq-3", "seq-2"], ["seq-1", "seq-0"]]
    assert tags(dataset, seq_list=["seq-0", "seq-4"]) == ["seq-0", "seq-4"]
    assert tags(dataset, seq_order=[2, 2]) == ["seq-2", "seq-2"]
    assert [batch.complete for batch in dataset.batches(2, batch_size=9, max_seqs=1)] == [0.5, 1.0]
    shares = [[t for b in dataset.batches(1, batch_size=9, share=Share(i, 2)) for t in b.seq_tags] for i in range(2)]
    assert shares == [["seq-4", "seq-2"], ["seq-3"]]


def test_resume_is_exact():
    """The random numbers of the sequences before are drawn again."""
    dataset = processed(static([3, 1, 4, 1, 5, 9, 2, 6]), map_seq=_add_random)
    whole = list(dataset.batches(1, batch_size=20, max_seqs=2))
    rest = list(dataset.batches(1, batch_size=20, max_seqs=2, start_batch=2))
    assert len(rest) == len(whole) - 2
    for one, other in zip(whole[2:], rest):
        np.testing.assert_array_equal(one.feed["data"], other.feed["data"])


@pytest.mark.parametrize("lengths", [[], [2], [3, 1, 2], [5, 3, 4, 1, 1, 2, 9, 7, 8, 6, 6], [1, 1, 1, 1]])
@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_laplace_ordering(lengths, size):
    """Blocks alternately ascending and descending; the progress goes on as before."""
    sequences = [
        TensorDict({"data": np.zeros((n, 1)), "complete_frac": np.array(i / 20), "seq_idx": np.array(i)})
        for i, n in enumerate(lengths)
    ]
    found = list(LaplaceOrdering(size)(iter(sequences)))
    expected = []
    for number, start in enumerate(range(0, len(lengths), size)):
        indices = list(range(start, min(start + size, len(lengths))))
        expected += sorted(indices, key=lambda i: lengths[i], reverse=number % 2 == 1)
    assert [int(data["seq_idx"].raw_tensor) for data in found] == expected
    np.testing.assert_allclose([data["complete_frac"].raw_tensor for data in found], np.arange(len(lengths)) / 20)


def test_streams():
    """Functions may drop, add and reorder sequences; an inner stream stays one."""

    def twice(sequences):
        for data in sequences:
            yield data
            yield TensorDict({"data": data["data"].raw_tensor + 1000, "seq_tag": "again"})

    dataset = processed(static([3, 1]), map_seq_stream=twice)
    assert dataset.is_stream and dataset.num_seqs is None
    assert tags(dataset) == ["seq-0", "again", "seq-1", "again"]
    assert values(dataset) == [0, 1000, 100, 1100]
    assert tags(processed({"class": "Task12AX"}, map_seq_stream=lambda seqs, **_: itertools.islice(seqs, 3))) == [
        *("seq-0", "seq-1", "seq-2"),
    ]
    dataset = processed({"class": Streamed}, map_seq=_times_two)
    assert dataset.is_stream and values(dataset) == [2000, 2020, 2040]
    dataset = processed({"class": "Task12AX"}, map_seq=lambda data: data)
    assert dataset.endless and len(list(itertools.islice(dataset.sequences(1), 5))) == 5
    assert not processed({"class": Streamed}, map_seq=_times_two).endless


def test_sequential():
    """Functions in turn, of sequences or of streams."""
    assert values(processed(map_seq=Sequential(_times_two, _times_two))) == [0, 400, 800, 1200, 1600]
    dataset = processed(map_seq_stream=Sequential(_drop, LaplaceOrdering(2)))
    assert sorted(tags(dataset)) == sorted(tags(processed(map_seq_stream=_drop)))


def test_map_outputs():
    """Another format, declared as in extern_data."""

    def labels(data, **_):
        return {"data": data["data"].raw_tensor[:, :1], "classes": NamedTensor("classes", raw_tensor=np.array([2, 1]))}

    outputs = {"data": {"dim": 1}, "classes": {"dim": 3, "sparse": True, "dtype": "int64"}}
    dataset = processed(map_seq=labels, map_outputs=outputs)
    assert dataset.num_outputs == {"data": (1, 2), "classes": (3, 1)}
    assert dataset.data_specs["classes"].sparse and dataset.target_list == ["classes"]
    first = next(dataset.sequences(1))
    assert first.data["data"].shape == (3, 1) and first.data["classes"].tolist() == [2, 1]


def test_shards():
    """Each sequence is processed by one process."""
    for function in ({"map_seq": _times_two}, {"map_seq_stream": lambda sequences: sequences}):
        parts = [tags(processed(**function, _num_shards=2, _shard_index=i)) for i in range(2)]
        assert sorted(parts[0] + parts[1]) == ["seq-%d" % i for i in range(5)]
    dataset = processed(map_seq_stream=_drop)
    with pytest.raises(DataError, match="is not defined with map_seq_stream if the number of processes changes"):
        list(dataset.batches(1, batch_size=9, share=Share(0, 1, ((1, 1),))))


@pytest.mark.parametrize("workers, buf_size", [(1, 1), (3, 1), (2, 5)])
def test_workers(workers, buf_size):
    """Each process has its own random numbers; sequences are dealt and collected in turn."""
    lengths = [3, 1, 4, 1, 5, 9, 2]
    options = {"num_workers": workers, "buf_size": buf_size}
    dataset = processed(static(lengths), map_seq=lambda data, **k: _add_random(data, **k), **options)
    seeds = [(2 * 683859 * workers + 30411 * i) % (2**32 - 1) for i in range(workers)]
    rngs = [np.random.RandomState(seed) for seed in seeds]
    expected = [100 * i + rngs[i % workers].randint(0, 100) + 2000 + i for i in range(7)]
    assert values(dataset, 2) == expected
    assert values(dataset, 2) == expected, "the processes are used again"
    dataset = processed(static(lengths), map_seq_stream=lambda s, **_: LaplaceOrdering(2)(s), **options)
    dealt = [range(i, 7, workers) for i in range(workers)]
    own = [tags(processed(static([lengths[i] for i in part]), map_seq_stream=LaplaceOrdering(2))) for part in dealt]
    own = [["seq-%d" % part[int(tag[4:])] for tag in found] for part, found in zip(dealt, own)]
    assert tags(dataset) == [t for row in itertools.zip_longest(*own) for t in row if t is not None]


def test_workers_whose_functions_need_many_or_few_sequences():
    """No process waits for another one for ever, whatever its function takes."""
    everything = processed(static([1] * 30), map_seq_stream=lambda s, **_: iter(list(s)), num_workers=2)
    assert len(tags(everything)) == 30
    dataset = processed({"class": "Task12AX"}, map_seq_stream=lambda s, **_: itertools.islice(s, 3), num_workers=2)
    assert len(tags(dataset)) == 6
    dataset = processed(static([1] * 30), map_seq_stream=lambda s, **_: iter(()), num_workers=2)
    assert tags(dataset) == []


def test_workers_that_fail():
    """Errors come back with their place, processes that die are told, epochs that are left end."""

    def fail(data, *, seq_idx, **_):
        if seq_idx == 3:
            raise KeyError("oh")
        if seq_idx == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return data

    dataset = processed(map_seq=fail, num_workers=2)
    with pytest.raises(DataError, match="^dataset 'train', .* of epoch 1: map_seq, sequence 'seq-3': KeyError: 'oh'$"):
        tags(dataset)
    assert tags(dataset, seq_order=[0, 1]) == ["seq-0", "seq-1"]
    dataset = processed(
        static([1] * 30), map_seq=lambda data, **k: fail(data, seq_idx=k["seq_idx"] + 10), num_workers=1
    )
    with pytest.raises(DataError, match="process 0 of dataset 'train' ended unexpectedly: signal 9"):
        tags(dataset)
    dataset = processed(static([1] * 30), map_seq=lambda data, **_: data, num_workers=2)
    sequences = dataset.sequences(1)
    next(sequences)
    sequences.close()
    assert len(tags(dataset)) == 30


def _with_fraction(value):
    def map_seq_stream(sequences, **_):
        for sequence in sequences:
            sequence["complete_frac"].raw_tensor = value
            yield sequence

    return map_seq_stream


def _wrong(change):
    def map_seq(data, **_):
        change(data)
        return data

    return {"map_seq": map_seq}


@pytest.mark.parametrize(
    "options, text",
    [
        ({}, "give one of map_seq and map_seq_stream"),
        ({"map_seq": _times_two, "seq_list_filter_file": "x"}, "'seq_list_filter_file' is 'x', but the order is that"),
        ({"map_seq": lambda data: None}, "has to return a TensorDict, but returned None"),
        (_wrong(lambda data: data.pop("data")), "the result has no key 'data', only"),
        (_wrong(lambda data: data.update(data=np.zeros((2, 2)))), "is float64 .2, 2., but should be float32 .None, 2."),
        (
            _wrong(lambda data: data.update(data=np.zeros((2, 3), "float32"))),
            "is float32 .2, 3., but should be float32",
        ),
        (_wrong(lambda data: data.update(data=np.zeros(2, "float32"))), "is float32 .2., but should be float32"),
        (_wrong(lambda data: setattr(data["data"], "raw_tensor", None)), "key 'data' of the result has no raw_tensor"),
        ({"map_seq_stream": lambda seqs: 3}, "has to yield sequences, but returned 3"),
        ({"map_seq_stream": _drop, "map_seq_stream_preserves_num_seqs": True}, "yielded . sequences of 5"),
        (
            {"map_seq_stream": lambda s: itertools.islice(s, 2), "map_seq_stream_preserves_num_seqs": True},
            "yielded 2 sequences of 5",
        ),
        ({"map_seq_stream": lambda s: reversed(list(s))}, "complete_frac of 'seq-3' is 0.8, but was 1 before"),
        ({"map_seq_stream": _with_fraction("half")}, "sequence 'seq-0': complete_frac must be a number .* not 'half'"),
        ({"map_seq_stream": _with_fraction(-0.1)}, "complete_frac must be a number from 0 to 1, or None, not -0.1"),
        ({"map_seq_stream": _with_fraction(float("nan"))}, "complete_frac must be a number from 0 to 1, .* not nan"),
        (
            {"map_seq": _times_two, "map_outputs": {"data": {"dimension": 3}}},
            "map_outputs: .*unknown option 'dimension'",
        ),
    ],
)
def test_mistakes(options, text):
    """One error that names the dataset and what is wrong."""
    with pytest.raises((ConfigError, DataError), match=text) as caught:
        list(processed(**options).sequences(1))
    assert "'train'" in str(caught.value)


def test_refused_orders():
    """The number may change, so there are no indices."""
    with pytest.raises(ConfigError, match="so they can't be chosen"):
        tags(processed(map_seq_stream=_drop), seq_order=[1])


def test_tensor_dict():
    """Made of arrays, of tensors by key, or of a list of tensors."""
    first = NamedTensor("a", dtype="int32", raw_tensor=np.zeros(2, "int32"))
    for made in (TensorDict({"a": first}), TensorDict([first]), TensorDict({"a": np.zeros(2, "int32")})):
        assert made["a"].raw_tensor.tolist() == [0, 0] and made["a"].shape == (2,) and made["a"].dtype == "int32"
        assert made.copy_template()["a"].raw_tensor is None
        made["b"] = np.ones(1)
        assert sorted(made.as_raw_tensor_dict()) == ["a", "b"] and "b" in made and len(made.copy()) == 2
        del made["a"]
        assert list(made.data) == ["b"]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("name", ["map_seq", "map_seq_stream"])
def test_errors_of_functions_name_option_and_line(name, num_workers, tmp_path):
    path = tmp_path / "my.config"
    path.write_text("def map_seq(data, **_):\n    return data['nokey']\n\n")
    path.write_text(path.read_text() + "def map_seq_stream(seqs, **_):\n    yield next(iter(seqs))['nokey']\n")
    function = Config.from_files([str(path)]).typed_value(name)
    dataset = processed(**{name: function}, num_workers=num_workers)
    with pytest.raises(DataError) as info:
        tags(dataset)
    what = "map_seq, sequence 'seq-0'" if name == "map_seq" else "map_seq_stream"
    start = "dataset 'train', at the start of epoch 1: %s: " % what
    assert str(info.value).startswith(start) and str(info.value).count("\n") <= 1
    assert "my.config:%d: KeyError: 'nokey'" % (2 if name == "map_seq" else 5) in str(info.value)


def _noise(data, *, rng, seq_idx, **_):
    data["data"].raw_tensor[:] = rng.uniform()
    data["data"].raw_tensor[0] = seq_idx
    return data


NOISY = {
    "class": "PostprocessingDataset",
    "dataset": {"class": "DummyDataset", "input_dim": 2, "output_dim": 3, "num_seqs": 6, "repeat_epoch": 2},
    "map_seq": _noise,
}


@pytest.mark.parametrize(
    "outer",
    [
        {"class": "CombinedDataset", "datasets": {"x": NOISY}, "data_map": {("x", "data"): "data"}},
        {"class": "MultiProcDataset", "dataset": lambda: NOISY, "num_workers": 2, "buffer_size": 1},
        {"class": "MultiProcDataset", "dataset": lambda: NOISY, "num_workers": 3, "buffer_size": 1},
    ],
    ids=["combined", "2 processes", "3 processes"],
)
def test_each_sequence_has_random_numbers_of_its_own(outer):
    """Where sequences are read one by one, or by several processes, the same numbers do not begin each of them."""
    alone = [
        (seq.data["data"][0, 0], seq.data["data"][1, 0])
        for seq in Dataset.from_config(NOISY).sequences(1, by_itself=True)
    ]
    got = [(seq.data["data"][0, 0], seq.data["data"][1, 0]) for seq in Dataset.from_config(outer).sequences(1)]
    assert got == alone and len(set(alone)) == 12
    assert [index for index, _ in got] == [*range(6)] * 2

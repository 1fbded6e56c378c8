"""CombinedDataset: several datasets mixed, with random access and as a stream."""

import ast
import re

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.combining.combined import Interleave
from tests.datasets.combining_cases import ROOT, all_cases, compare
from tests.datasets.streams import Streamed

CASES = {
    "%s-%s" % (folder, name): (folder, case)
    for name, (folder, case) in all_cases().items()
    if name.startswith("combined")
}
ALL = ["a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2"]


def static(lengths, **options):
    """Return a dataset whose sequence i has the given length and counts from 100 * i."""
    data = [{"data": np.arange(2 * n, dtype="float32").reshape(n, 2) + 100 * i} for i, n in enumerate(lengths)]
    return {"class": "StaticDataset", "data": data, **options}


def of_case(folder, options):
    """Return the options of a recorded case in the form of configs."""
    options = {"class": "CombinedDataset", **options}
    inner = options["datasets"]
    if isinstance(inner, str):  # in words: streams of 3 and 2 sequences
        inner = {"A": {"class": Streamed, "num": 3}, "B": {"class": Streamed, "num": 2}}
        options["data_map"] = {("A", "data"): "data", ("B", "data"): "data"}
    for name, spec in inner.items():
        if isinstance(spec, str):
            inner[name] = static(options.pop("lengths_%s" % name), **options.pop("%s_extra" % name, {}))
        elif spec["class"] == "HDFDataset":
            inner[name] = {**spec, "files": [str(ROOT / folder / file) for file in spec["files"]]}
    pairs = options["data_map"].items() if isinstance(options["data_map"], dict) else options["data_map"]
    options["data_map"] = {
        ast.literal_eval(source) if isinstance(source, str) else tuple(source): key for source, key in pairs
    }
    return {**options, "datasets": inner}


@pytest.mark.parametrize("name", CASES)
def test_recorded(name):
    """Sequences and format are the recorded ones."""
    folder, case = CASES[name]
    options = of_case(folder, dict(case["options"]))
    if "exception" in case:
        with pytest.raises((ConfigError, DataError)):
            list(Dataset.from_config(options).sequences(1))
    else:
        compare(Dataset.from_config(options), folder, case)


def combined(streams="", a=5, b=3, **options):
    """Return sequences a0, a1, ... and b0, b1, ...; the datasets named in ``streams`` are streams."""
    parts = {}
    for name, num in (("a", a), ("b", b)):
        if name in streams:
            parts[name] = {"class": Streamed, "num": num, "prefix": name, "estimated_num_seqs": num}
        else:
            parts[name] = Listed(num=num, prefix=name)
    data_map = {(name, "data"): "data" for name in parts}
    return Dataset.from_config({"class": "CombinedDataset", "datasets": parts, "data_map": data_map, **options})


class Listed(Streamed):
    """The sequences of ``Streamed`` with random access."""

    def setup(self):
        """Switch to random access."""
        self.is_stream = False

    @property
    def num_seqs(self):
        """Return the option ``num``."""
        return self.opts.num

    def tag(self, index):
        """Return prefix and index."""
        return "%s%d" % (self.opts.prefix, index)

    def read(self, index, epoch, keys):
        """Return the data of the stream."""
        return self.make(index, epoch)


def tags(dataset, epoch=1, **options):
    return " ".join(seq.tag for seq in dataset.sequences(epoch, **options))


@pytest.mark.parametrize(
    "order, expected",
    [
        ("default", "a0 a1 a2 a3 a4 b0 b1 b2"),
        ("reversed", "b0 b1 b2 a0 a1 a2 a3 a4"),
        ("interleave", "a0 b0 a1 a2 b1 a3 a4 b2"),
    ],
)
@pytest.mark.parametrize("streams", ["ab", "a", "b"])
def test_streams(streams, order, expected):
    """Streams are mixed one sequence at a time; with correct estimates as datasets of known numbers are."""
    dataset = combined(streams, seq_ordering=order)
    assert dataset.is_stream and dataset.num_seqs is None and not dataset.endless
    assert tags(dataset) == expected
    if order == "interleave":
        assert tags(combined(seq_ordering=order)) == expected


@pytest.mark.parametrize("options", [{"seq_ordering": "random_dataset"}, {"interleave_gumbel_scale": 0.7}])
@pytest.mark.parametrize("streams", ["", "ab"])
def test_random_choice_keeps_the_order_within_each_dataset(streams, options):
    """Each sequence occurs once, the result depends on the epoch only, and all epochs differ."""
    options = {"seq_ordering": "interleave", **options}
    dataset = combined(streams, a=30, b=20, **options)
    found = [tags(dataset, epoch) for epoch in (1, 2, 3)]
    assert found == [tags(combined(streams, a=30, b=20, **options), epoch) for epoch in (1, 2, 3)]
    assert len(set(found)) == 3
    for text in found:
        for name, num in (("a", 30), ("b", 20)):
            assert re.findall("%s[0-9]+" % name, text) == ["%s%d" % (name, i) for i in range(num)]


def test_wrong_estimates_lose_nothing():
    """Estimates affect the order only."""
    dataset = combined("ab", a=4, b=4, seq_ordering="interleave")
    for inner, estimate in zip(dataset._inner, (1, 100)):
        inner.opts.estimated_num_seqs = estimate
    assert sorted(tags(dataset).split()) == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]


@pytest.mark.parametrize("order", ["default", "random", "interleave", "random_dataset", "reverse"])
@pytest.mark.parametrize("streams", ["", "b"])
def test_shards(streams, order):
    """Each sequence is in one shard."""
    if streams and order == "random":
        return
    parts = [combined(streams, seq_ordering=order, _num_shards=3, _shard_index=i) for i in range(3)]
    assert sorted(tag for part in parts for tag in tags(part).split()) == ALL


@pytest.mark.parametrize("order", ["default", "random", "interleave", "random_dataset"])
def test_partition(order):
    """The parts of a full epoch are disjoint and complete, also of mixed orders."""
    dataset = combined(seq_ordering=order, partition_epoch=3)
    for first in (1, 4):
        parts = [tags(dataset, epoch).split() for epoch in range(first, first + 3)]
        assert sorted(tag for part in parts for tag in part) == ALL


def test_explicit_orders():
    """Sequences are chosen by tag or by index over all datasets."""
    dataset = combined(seq_ordering="random")
    assert tags(dataset, seq_list=["b1", "a4", "b1"]) == "b1 a4 b1"
    assert tags(dataset, seq_order=[5, 0]) == "b0 a0"
    assert tags(dataset, seq_order=[]) == ""


def test_sampling_sizes_of_one_dataset():
    """A dataset without an entry is read in full."""
    dataset = combined(sampling_sizes={"b": 2})
    assert [tags(dataset, epoch) for epoch in (1, 2)] == ["a0 a1 a2 a3 a4 b0 b1", "a0 a1 a2 a3 a4 b2 b0"]


def test_window_and_missing_keys():
    """The option window acts on the mapped key; a key that a dataset lacks has no frames."""
    parts = {"a": static([3]), "b": static([2])}
    data_map = {("a", "data"): "data", ("b", "data"): "other"}
    dataset = Dataset.from_config({"class": "CombinedDataset", "datasets": parts, "data_map": data_map, "window": 3})
    first, second = dataset.sequences(1)
    assert {key: value.shape for key, value in first.data.items()} == {"data": (3, 6), "other": (0, 2)}
    assert {key: value.shape for key, value in second.data.items()} == {"data": (0, 6), "other": (2, 2)}
    assert dataset.data_specs["data"].dim == 6 and dataset.num_outputs == {"data": (2, 2), "other": (2, 2)}


def test_data_dtypes():
    """Data has the type that is given for it."""
    parts = {"a": static([3])}
    options = {"datasets": parts, "data_map": {("a", "data"): "data"}, "data_dtypes": {"data": "float64"}}
    dataset = Dataset.from_config({"class": "CombinedDataset", **options})
    assert dataset.data_specs["data"].dtype == "float64"
    assert next(iter(dataset.sequences(1))).data["data"].dtype == np.float64


@pytest.mark.parametrize(
    "key, dtype, text",
    [
        ("data", "int32", "'int32' of key 'data' can't hold float32"),
        ("data", "foo", "'foo' of key 'data' can't hold float32"),
        ("labels", "bool", "'bool' of key 'labels' can't hold 1000 labels"),
        ("labels", "int8", "'int8' of key 'labels' can't hold 1000 labels"),
        ("labels", "float32", "'float32' of key 'labels' can't hold 1000 labels"),
    ],
)
def test_data_dtypes_that_lose_values(key, dtype, text):
    dummy = {"class": "DummyDataset", "input_dim": 2, "output_dim": 1000, "num_seqs": 2}
    options = {"datasets": {"a": dummy}, "data_map": {("a", "data"): "data", ("a", "classes"): "labels"}}
    with pytest.raises(ConfigError, match=text):
        Dataset.from_config({"class": "CombinedDataset", **options, "data_dtypes": {key: dtype}})
    Dataset.from_config({"class": "CombinedDataset", **options, "data_dtypes": {"labels": "int16"}})


def test_invalid_lines_of_a_text(tmp_path):
    (tmp_path / "text").write_text("a\nx\na\n")
    text = {"class": "LmDataset", "corpus_file": str(tmp_path / "text"), "error_on_invalid_seq": False}
    text["orth_vocab"] = {"labels": ["a"], "unknown_label": None}
    options = {"class": "CombinedDataset", "data_map": {("a", "data"): "data"}}
    with pytest.raises(ConfigError, match="'a' has error_on_invalid_seq=False, but .* give skip_broken_seqs"):
        Dataset.from_config({**options, "datasets": {"a": text}})
    dataset = Dataset.from_config({**options, "datasets": {"a": {**text, "skip_broken_seqs": True}}})
    assert [seq.tag for seq in dataset.sequences(1)] == ["line-0", "line-2"]


def test_inner_options():
    """Only the seed offset is inherited; what the inner dataset sets itself stays."""
    parts = {"a": static([1, 2]), "b": static([1], random_seed_offset=7)}
    options = {"datasets": parts, "data_map": {("a", "data"): "data"}, "chunking": 2, "random_seed_offset": 3}
    dataset = Dataset.from_config({"class": "CombinedDataset", "name": "train", "seq_ordering": "random", **options})
    first, second = dataset._inner
    assert (first.name, first.opts.random_seed_offset, first.opts.chunking) == ("train_a", 3, None)
    assert (second.name, second.opts.random_seed_offset, second.opts.seq_ordering) == ("train_b", 7, "default")


@pytest.mark.parametrize("fractions, expected", [({0: 0.5, 1: 0.5}, 0), ({0: 0.6, 1: 0.5}, 1), ({2: 0.1}, 2)])
def test_interleave_without_noise(fractions, expected):
    """The lowest fraction, of equal ones the first dataset."""
    assert Interleave(None, 1).next(fractions, dict.fromkeys(fractions, 1.0)) == expected


@pytest.mark.parametrize(
    "options, text",
    [
        ({"data_map": {("c", "data"): "data"}}, "data_map has a dataset 'c'"),
        ({"data_map": {("a", "dat"): "data"}}, "the dataset 'a' has no key 'dat'. Did you mean 'data'"),
        ({"data_map": {"data": ("a", "data")}}, "option 'data_map' must be"),
        ({"data_map": {}}, "must not be empty"),
        ({"sampling_sizes": {"c": 1}}, "sampling_sizes of 'c'"),
        ({"sampling_sizes": 0}, "sampling_sizes of 'a' is 0"),
        ({"interleave_gumbel_scale": "all"}, "a number or 'remaining', not 'all'"),
        ({"interleave_gumbel_scale": float("nan")}, "interleave_gumbel_scale is nan, but must be finite"),
        ({"seq_ordering": "randomly"}, "unknown seq_ordering"),
        ({"seq_ordering": "sorted"}, "needs the lengths"),
        ({"data_dims": {"data": (3, 2)}}, "dim 2 and 2 axes in the dataset 'a', but dim 3 and 2 axes in data_dims"),
        (
            {"datasets": {"a": {"class": "Nope"}, "b": static([1])}},
            "inner dataset 'CombinedDataset_a': unknown dataset class 'Nope'",
        ),
        ({"datasets": {"a": {"class": "Task12AX"}, "b": static([1])}}, "the dataset 'a' is endless"),
        ({"datasets": {"a": {"class": Streamed}, "b": static([1])}}, "Give it estimated_num_seqs"),
    ],
)
def test_bad_options(options, text):
    """Mistakes are one error that names the option."""
    given = {"datasets": {"a": static([1, 2]), "b": static([1])}, "data_map": {("a", "data"): "data"}, **options}
    with pytest.raises(ConfigError, match=text):
        list(Dataset.from_config({"class": "CombinedDataset", **given}).sequences(1))


@pytest.mark.parametrize("options", [{"partition_epoch": 2}, {"sampling_sizes": 2}, {"seq_ordering": "random"}])
def test_streams_refuse_what_needs_random_access(options):
    """An error, not another order."""
    with pytest.raises(ConfigError, match="not possible with a stream among the datasets"):
        tags(combined("a", **options))

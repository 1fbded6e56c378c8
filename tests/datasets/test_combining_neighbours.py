"""Combinations of datasets beside the recorded ones: streams inside, shares of processes, resuming, lists, mistakes."""

from __future__ import annotations

import gzip
import json
import pickle

import h5py
import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset, Example, register_dataset
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.share import Share
from returnn_tf.datasets.core.stream import StreamDataset
from tests.datasets.recorded import check_resumption

LENGTHS = [5, 2, 7, 3, 6, 4]


@register_dataset("StreamOfTagsForTests")
class _StreamOfTags(StreamDataset):
    """Yields the tags it is given, or those of its corpus; "data" holds the number in the tag."""

    takes = frozenset(("seq_list",))

    def make_specs(self):
        return {"data": DataSpec(dim=1, ndim=2, dtype="float32", shape=(1,))}

    def stream(self, epoch, *, seq_list=None):
        for index, tag in enumerate(self.tags(seq_list)):
            yield Example(index=index, tag=tag, data={"data": np.full((2, 1), int(tag[1:]), "float32")})

    def tags(self, seq_list):
        return ["s%d" % i for i in range(6)] if seq_list is None else seq_list


@register_dataset("WrongStreamForTests")
class _WrongStream(_StreamOfTags):
    def tags(self, seq_list):
        return seq_list[:2] if self.name.endswith("short") else ["s0", "s5", "s5"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return HDF files: a (all six sequences, shuffled), b (all six), c (four of them), w (all, with other tags)."""
    folder = tmp_path_factory.mktemp("combining")
    for name, order in {"a": [3, 0, 5, 1, 4, 2], "b": range(6), "c": [1, 0, 3, 4], "w": range(6)}.items():
        with h5py.File(folder / ("%s.hdf" % name), "w") as file:
            file["inputs"] = np.concatenate([np.full((LENGTHS[i], 2), i, "float32") for i in order])
            file["seqLengths"] = np.array([[LENGTHS[i], 0] for i in order], "int32")
            file["seqTags"] = np.array([b"%s%d" % (b"w" if name == "w" else b"s", i) for i in order])
    return {name: {"class": "HDFDataset", "files": [str(folder / ("%s.hdf" % name))]} for name in "abcw"}


def _meta(datasets, **options):
    data_map = {"data" if number == 0 else name: (name, "data") for number, name in enumerate(datasets)}
    return {"class": "MetaDataset", "name": "m", "datasets": datasets, "data_map": data_map, **options}


def _read(spec, epoch=1, **options):
    """Return tags, and for each sequence the numbers in its data by key."""
    found = []
    for seq in Dataset.from_config(spec).sequences(epoch, **options):
        found.append((seq.tag, {key: value.reshape(-1)[0] for key, value in seq.data.items()}))
    return found


def _tags(spec, epoch=1, **options):
    return [tag for tag, _ in _read(spec, epoch, **options)]


# ---- MetaDataset


@pytest.mark.parametrize(
    "order", ["default", "reverse", "random", "sorted", "sorted_reverse", "laplace:.2", "random:3"]
)
def test_control_gives_the_order_of_all(files, order):
    control = {**files["a"], "seq_ordering": order, "partition_epoch": 2}
    spec = _meta({"b": files["b"], "a": control}, seq_order_control_dataset="a", seq_ordering="reverse")
    for epoch in (1, 2, 3):
        assert _tags(spec, epoch) == _tags(control, epoch)
        assert all(
            tag == "s%d" % values["data"] and values["data"] == values["a"] for tag, values in _read(spec, epoch)
        )


@pytest.mark.parametrize(
    "options",
    [
        {"repeat_epoch": 2},
        {"partition_epoch": 3, "seq_ordering": "random"},
        {"unique_seq_tags": True},
        {"seq_ordering": "sorted"},
    ],
)
def test_own_order_is_that_of_the_default_dataset_alone(files, options):
    spec = _meta({"b": files["b"], "a": files["a"]}, **options)
    for epoch in (1, 2):
        assert _tags(spec, epoch) == _tags({**files["b"], **options}, epoch)


def test_streams_read_the_tags_of_the_control_dataset(files):
    stream = {"class": "StreamOfTagsForTests"}
    control = {**files["a"], "seq_ordering": "random", "partition_epoch": 2}
    spec = _meta({"r": stream, "a": control}, seq_order_control_dataset="a")
    for epoch in (1, 2, 5):
        assert _tags(spec, epoch) == _tags(control, epoch)
        assert all(values["data"] == values["a"] for _, values in _read(spec, epoch))
    dataset = Dataset.from_config(spec)
    every = list(dataset.batches(1, batch_size=8))
    assert [batch.seq_tags for batch in dataset.batches(1, batch_size=8, start_batch=1)] == [
        b.seq_tags for b in every[1:]
    ]


def test_streams_read_a_list_of_tags(files, tmp_path):
    (tmp_path / "r.txt").write_text("s4\ns1\ns2\n")
    (tmp_path / "w.txt").write_text("w4\nw1\nw2\n")
    lists = {name: str(tmp_path / ("%s.txt" % name)) for name in "rw"}
    spec = _meta({"r": {"class": "StreamOfTagsForTests"}, "w": files["w"]}, seq_list_file=lists, seq_ordering="reverse")
    assert _read(spec) == [("s%d" % i, {"data": i, "w": i}) for i in (2, 1, 4)]


@pytest.mark.parametrize(
    "name, text",
    [
        ("short", "dataset 'r' ends after 2 sequences; 's5' is missing"),
        ("other", "'r' has the sequence 's0' here, but should have 's3'"),
    ],
)
def test_streams_that_deliver_something_else(files, name, text):
    stream = {"class": "WrongStreamForTests", "name": "r " + name}
    with pytest.raises(DataError, match="dataset 'm', sequence .*" + text):
        _read(_meta({"r": stream, "a": files["a"]}, seq_order_control_dataset="a"))


@pytest.mark.parametrize("form", ["txt", "gz", "pkl list", "pkl dict", "dict of files"])
def test_lists_in_all_forms(files, form, tmp_path):
    tags = ["s2", "s0", "s5"]
    path = str(tmp_path / "list.")
    if form in ("txt", "gz"):
        with (gzip.open if form == "gz" else open)(path + form, "wt") as file:
            file.write("\n".join(tags) + "\n")
        given = path + form
    elif form == "dict of files":
        given = {}
        for name in "ab":
            (tmp_path / name).write_text("\n".join(tags))
            given[name] = str(tmp_path / name)
    else:
        given = path + "pkl"
        with open(given, "wb") as file:
            pickle.dump(tags if form == "pkl list" else {"a": tags, "b": tags}, file)
    spec = _meta({"b": files["b"], "a": files["a"]}, seq_list_file=given, seq_lens_file="")
    assert _tags(spec) == tags
    assert _tags({**spec, "seq_ordering": "sorted"}) == ["s5", "s0", "s2"]
    assert Dataset.from_config(spec).num_seqs == 3


def test_a_sequence_may_belong_to_several_others(files, tmp_path):
    lists = {"b": ["s1", "s1", "s2"], "w": ["w3", "w4", "w5"]}
    (tmp_path / "l.pkl").write_bytes(pickle.dumps(lists))
    spec = _meta({"b": files["b"], "w": files["w"]}, seq_list_file=str(tmp_path / "l.pkl"))
    assert _read(spec) == [("s1", {"data": 1, "w": 3}), ("s1", {"data": 1, "w": 4}), ("s2", {"data": 2, "w": 5})]
    assert _read(spec, seq_order=[1]) == [("s1", {"data": 1, "w": 4})]


def test_lengths_of_a_file_order_the_sequences(files, tmp_path):
    (tmp_path / "lens.json").write_text(json.dumps({"s%d" % i: {"data": 10 - i, "x": 1} for i in range(6)}))
    spec = _meta({"b": files["b"], "a": files["a"]}, seq_lens_file=str(tmp_path / "lens.json"), seq_ordering="sorted")
    assert _tags(spec) == ["s%d" % i for i in range(5, -1, -1)]


def test_only_what_the_network_needs_is_read(files, monkeypatch):
    dataset = Dataset.from_config(_meta({"b": files["b"], "a": files["a"]}))
    with monkeypatch.context() as patch:  # the lengths count, which HDF files know
        patch.setattr(dataset.inner["b"], "read", None)
        patch.setattr(dataset.inner["b"], "read_many", None)
        assert sum(batch.num_seqs for batch in dataset.batches(1, batch_size=100, used_data_keys=["a"])) == 6
    monkeypatch.setattr(dataset.inner["b"], "open_epoch", None)
    assert sum(batch.num_seqs for batch in dataset.batches(1, batch_size={"a": 100}, used_data_keys=["a"])) == 6


def _lists_of(tmp_path, **lists):
    (tmp_path / "l.pkl").write_bytes(pickle.dumps(lists))
    return str(tmp_path / "l.pkl")


MISTAKES = {
    "unknown dataset": (
        lambda f, t: {"data_map": {"data": ("x", "data")}},
        "names the dataset 'x', which 'datasets' lacks",
    ),
    "unknown control": (
        lambda f, t: {"seq_order_control_dataset": "x"},
        "'seq_order_control_dataset' names the dataset 'x'",
    ),
    "unknown key": (
        lambda f, t: {"data_map": {"data": ("a", "dat")}},
        "dataset 'a' has no key 'dat'. Did you mean 'data'",
    ),
    "no pairs": (lambda f, t: {"data_map": {"data": "a"}}, "'data': 'a' must be .name of a dataset, key in it."),
    "empty map": (lambda f, t: {"data_map": {}}, "'data_map' is {}, but must be"),
    "fewer": (
        lambda f, t: {"datasets": {"a": f["a"], "b": f["c"]}},
        "dataset 'b' has only 4 sequences, fewer than the 6",
    ),
    "other tags": (
        lambda f, t: {"datasets": {"a": f["a"], "b": f["w"]}},
        "inner dataset 'm_b' .HDFDataset. has no sequence 's3'",
    ),
    "bad inner": (
        lambda f, t: {"datasets": {"a": f["a"], "b": {"class": "No"}}},
        "inner dataset 'm_b': unknown dataset cl",
    ),
    "dims lack a key": (lambda f, t: {"data_dims": {"data": [2, 2]}}, "'data_dims' lacks the key 'b' of data_map"),
    "other dims": (
        lambda f, t: {"data_dims": {"data": [2, 2], "b": [3, 2]}},
        "key 'b' has dim 3 and 2 axes there, but",
    ),
    "no list": (lambda f, t: {"seq_list_file": _lists_of(t, a=["s1"])}, "has no list for dataset 'b'"),
    "short list": (lambda f, t: {"seq_list_file": _lists_of(t, a=["s1"], b=[])}, "l.pkl' is empty"),
    "lists differ": (
        lambda f, t: {"seq_list_file": _lists_of(t, a=["s1"], b=["s1", "s2"])},
        "1 for 'a', 2 for 'b' tags",
    ),
    "no tags": (lambda f, t: {"seq_list_file": _lists_of(t, a=[3], b=[4])}, "entry 0 is 3, not a sequence tag"),
    "no list file": (lambda f, t: {"seq_list_file": "no.txt"}, "file 'no.txt' does not exist"),
    "unknown in list": (
        lambda f, t: {"seq_list_file": _lists_of(t, a=["s1"], b=["x"])},
        "inner dataset 'm_b' .HDFDataset. has no sequence 'x'",
    ),
    "list of control": (
        lambda f, t: {"seq_list_file": _lists_of(t, a=["s1"] * 6, b=["s1"] * 6), "seq_order_control_dataset": "a"},
        "seq_list_file must have the order of the control dataset 'a', but its entry 0 is 's1', not 's3'",
    ),
    "no lengths": (
        lambda f, t: {"seq_lens_file": "no.json", "seq_ordering": "sorted"},
        "file 'no.json' does not exist",
    ),
    "stream as control": (
        lambda f, t: {
            "datasets": {"a": {"class": "StreamOfTagsForTests"}, "b": f["b"]},
            "seq_order_control_dataset": "a",
        },
        "dataset 'a' can't control the order, since it is read as a stream",
    ),
    "stream without tags": (
        lambda f, t: {"datasets": {"a": {"class": "StreamOfTagsForTests"}, "b": f["b"]}},
        "dataset 'a' does not know its tags in advance, so seq_order_control_dataset must name another one",
    ),
    "frames": (lambda f, t: {"shuffle_frames_of_nseqs": 2}, "shuffle_frames_of_nseqs acts on the inner datasets"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_of_meta(files, name, tmp_path):
    change, text = MISTAKES[name]
    spec = {**_meta({"a": files["a"], "b": files["b"]}), **change(files, tmp_path)}
    with pytest.raises((ConfigError, DataError), match="dataset 'm' .MetaDataset.*: .*" + text + "|^" + text):
        _read(spec)


@pytest.mark.parametrize("options", [{}, {"seq_order_control_dataset": "a"}])
def test_a_default_dataset_that_leaves_out_a_sequence(options, tmp_path):
    (tmp_path / "text").write_text("a\nx\na\n")
    a, b = (
        {"class": "LmDataset", "corpus_file": str(tmp_path / "text"), "orth_vocab": {"labels": labels}}
        for labels in (["a"], ["a", "x"])
    )
    a["orth_vocab"]["unknown_label"] = b["orth_vocab"]["unknown_label"] = None
    sequences = Dataset.from_config(_meta({"a": {**a, "error_on_invalid_seq": False}, "b": b}, **options)).sequences(1)
    assert next(sequences).tag == "line-0"
    with pytest.raises(DataError, match="'line-1' .*: dataset 'a' has the sequence 'line-2' here, since it leaves"):
        next(sequences)


# ---- all: shares of processes, resuming, other processes

STREAM = {"class": "StreamOfTagsForTests"}
ALL = {
    "meta": lambda f: _meta({"b": {**f["b"], "seq_ordering": "random"}, "a": f["a"]}, seq_order_control_dataset="b"),
    "meta stream": lambda f: _meta({"r": STREAM, "a": f["a"]}, seq_order_control_dataset="a"),
    "concat": lambda f: {"class": "ConcatDataset", "datasets": [{**f["a"], "seq_ordering": "random"}, f["w"]]},
    "concat stream": lambda f: {"class": "ConcatDataset", "datasets": [STREAM, STREAM]},
    "multi": lambda f: {
        "class": "MultiEpochDataset", "dataset": {**f["a"], "seq_ordering": "random"}, "multi_epoch": 3
    },
    "multi stream": lambda f: {"class": "MultiEpochDataset", "dataset": STREAM, "multi_epoch": 2},
    "map": lambda f: {"class": "DummyGenericDataset", "data_template": {"data": {"dim": 2}}, "num_seqs": 9},
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_shares_and_resuming(files, name):
    dataset = Dataset.from_config(ALL[name](files))
    every = [seq.tag for seq in dataset.sequences(2)]
    assert [seq.position for seq in dataset.sequences(2)] == list(range(len(every)))
    shares = []
    for rank in range(2):
        batches = dataset.batches(2, batch_size=1000, max_seqs=2, share=Share(rank, 2))
        shares.append([tag for batch in batches for tag in batch.seq_tags])
    assert [shares[i % 2][i // 2] for i in range(len(every))] == every
    batches = list(dataset.batches(2, batch_size=1000, max_seqs=2))
    assert [tag for batch in batches for tag in batch.seq_tags] == every
    check_resumption(dataset, 2, batch_size=1000, max_seqs=2)
    copy = pickle.loads(pickle.dumps(dataset))
    assert [seq.tag for seq in copy.sequences(2)] == every


@pytest.mark.parametrize("name", ["meta", "concat", "multi"])
def test_window_of_the_outer_dataset(files, name):
    spec = ALL[name](files)
    plain, wide = Dataset.from_config(spec), Dataset.from_config({**spec, "window": 3})
    assert wide.data_specs["data"].dim == 3 * plain.data_specs["data"].dim
    for seq, one in zip(wide.sequences(1), plain.sequences(1)):
        np.testing.assert_array_equal(seq.data["data"][:, 2:4], one.data["data"])


# ---- ConcatDataset, ConcatSeqsDataset


def test_explicit_lists_of_concat(files):
    spec = {"class": "ConcatDataset", "datasets": [files["c"], files["b"]]}
    assert [tag for tag, _ in _read(spec, seq_order=[9, 0, 3, 4])] == ["s5", "s1", "s4", "s0"]
    dataset = Dataset.from_config(spec)
    # cut by the sizes of the datasets, 4 and 6; s5 is only in the second one
    assert [seq.index for seq in dataset.sequences(1, seq_list=["s0", "s5", "s1", "s1", "s1"])] == [1, 9, 0, 0, 5]
    with pytest.raises(DataError, match="has no sequence 'x'"):
        list(dataset.sequences(1, seq_list=["x"]))


@pytest.mark.parametrize("name", ["seq_list_filter_file", "partition_epoch", "seq_ordering"])
def test_order_belongs_into_the_inner_datasets(files, name):
    value = {"seq_list_filter_file": "a", "partition_epoch": 2, "seq_ordering": "reverse"}[name]
    for spec in (ALL["concat"](files), ALL["multi"](files)):
        with pytest.raises(ConfigError, match="option '%s' is %r, but the order is that of the inner" % (name, value)):
            Dataset.from_config({**spec, name: value})


def _glued(files, tmp_path, lines=("s0;s2;s1", "s4", "s5;s3"), inner="b", **options):
    (tmp_path / "seqs.txt").write_text("".join(line + "\n" for line in lines))
    (tmp_path / "lens.py").write_text(repr({"s%d" % i: n for i, n in enumerate(LENGTHS)}))
    files = {
        "seq_list_file": str(tmp_path / "seqs.txt"),
        "seq_len_file": str(tmp_path / "lens.py"),
        "dataset": files[inner],
    }
    return {"class": "ConcatSeqsDataset", "name": "g", **files, **options}


def test_glued_sequences(files, tmp_path):
    spec = _glued(files, tmp_path, repeat_in_between_last_frame_up_to_multiple_of={"data": 4}, seq_ordering="sorted")
    got = {seq.tag: seq.data["data"][:, 0].tolist() for seq in Dataset.from_config(spec).sequences(1)}
    assert list(got) == ["s4", "s5;s3", "s0;s2;s1"]
    assert got["s0;s2;s1"] == [0] * 8 + [2] * 8 + [1] * 2
    assert got["s5;s3"] == [5] * 4 + [3] * 3


def test_padding_counts_the_labels_with_their_postfix(tmp_path):
    """As in RETURNN: the length of a target is that of the inner dataset."""
    seqs = [{"data": np.full((5, 1), float(i)), "classes": np.array([i, 9], "int32")} for i in range(2)]
    (tmp_path / "seqs.txt").write_text("seq-0;seq-1\n")
    (tmp_path / "lens.py").write_text("{'seq-0': 5, 'seq-1': 5}")
    dataset = Dataset.from_config(
        {
            "class": "ConcatSeqsDataset",
            "dataset": {"class": "StaticDataset", "data": seqs},
            "seq_list_file": str(tmp_path / "seqs.txt"),
            "seq_len_file": str(tmp_path / "lens.py"),
            "remove_in_between_postfix": {"classes": 9},
            "pad_narrow_data_to_multiple_of_target_len": {"data": ("classes", 3)},
        }
    )
    (seq,) = dataset.sequences(1)
    assert seq.data["classes"].tolist() == [0, 1, 9]
    assert seq.data["data"][:, 0].tolist() == [0] * 6 + [1] * 5
    (batch,) = dataset.batches(1, batch_size=100)
    assert batch.num_frames == {"data": 11, "classes": 3}


def test_batches_of_glued_sequences_are_planned_without_reading(files, tmp_path, monkeypatch):
    spec = _glued(files, tmp_path, repeat_in_between_last_frame_up_to_multiple_of={"data": 4})
    dataset = Dataset.from_config(spec)
    every = [batch.seq_tags for batch in dataset.batches(1, batch_size=20)]
    monkeypatch.setattr(dataset.inner, "read", None)
    monkeypatch.setattr(dataset.inner, "read_many", None)
    assert list(dataset.batches(1, batch_size=20, start_batch=len(every))) == []


@pytest.mark.parametrize("epoch, tags", [(1, ["s4"]), (2, ["s4", "s5;s3"]), (3, ["s0;s2;s1", "s4", "s5;s3"])])
def test_glued_sequences_of_some_epochs(files, tmp_path, epoch, tags):
    limits = {(1, 1): {"max_mean_len": 1}, (2, 2): {"max_mean_len": 6.2}}
    assert _tags(_glued(files, tmp_path, epoch_wise_filter=limits), epoch) == tags


@pytest.mark.parametrize(
    "options, text",
    [
        ({"lines": ["s0;s9"]}, "lens.py' lacks the sequence 's9', which 's0;s9' in .*seqs.txt' needs"),
        ({"inner": "w"}, "seqs.txt': .*has no sequence 's0'"),
        (
            {"remove_in_between_postfix": {"data": 7}},
            "sequence 's0;s2;s1' .*key 'data' should end with 7 .*, but ends with",
        ),
        ({"remove_in_between_postfix": {"dat": 7}}, "names the key 'dat', which the inner dataset lacks. Did you mean"),
        ({"repeat_in_between_last_frame_up_to_multiple_of": {"data": 0}}, "'data': 0 must be a positive integer"),
        ({"pad_narrow_data_to_multiple_of_target_len": {"data": ("data", 1.5)}}, "must be .target, positive integer."),
        ({"epoch_wise_filter": {(1, 2): {"max": 3}}}, "unknown option 'max'"),
        ({"seq_tag_delim": ""}, "'seq_tag_delim' is empty"),
    ],
)
def test_mistakes_of_glued_sequences(files, tmp_path, options, text):
    with pytest.raises((ConfigError, DataError), match=text):
        _read(_glued(files, tmp_path, **options))


def test_texts_are_joined_by_blanks(tmp_path):
    seqs = [{"data": np.zeros((n, 1), "f4"), "raw": np.array("text %d" % n, object)} for n in (1, 2)]
    (tmp_path / "seqs.txt").write_text("seq-1;seq-0\n")
    (tmp_path / "lens.py").write_text("{'seq-0': 1, 'seq-1': 2}")
    files = {"seq_list_file": str(tmp_path / "seqs.txt"), "seq_len_file": str(tmp_path / "lens.py")}
    spec = {"class": "ConcatSeqsDataset", "dataset": {"class": "StaticDataset", "data": seqs}, **files}
    (seq,) = Dataset.from_config(spec).sequences(1)
    assert str(seq.data["raw"]) == "text 2 text 1" and seq.data["raw"].shape == ()


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"seq_ordering": "random"}, "has no effect: seq_ordering 'random' needs no lengths"),
        (
            {"seq_ordering": "sorted", "seq_order_control_dataset": "a"},
            "has no effect, since dataset 'a' controls the ",
        ),
        ({"seq_ordering": "sorted"}, None),
        ({"seq_ordering": "laplace:.2"}, None),
        ({"seq_ordering": lambda epoch: "random"}, None),
    ],
)
def test_lengths_that_no_order_needs_are_reported(files, options, reason, tmp_path, caplog):
    (tmp_path / "lens.json").write_text("{}")
    Dataset.from_config({**_meta({"a": files["a"], "b": files["b"]}), "seq_lens_file": "lens.json", **options})
    found = [text for text in caplog.messages if "'seq_lens_file'" in text]
    assert found == [] if reason is None else len(found) == 1 and reason in found[0]

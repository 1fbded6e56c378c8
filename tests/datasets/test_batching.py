"""Batches: all recorded cases, the arrays which a network is fed with, and what a user can do wrong."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.options import declared_options
from returnn_tf.datasets import Dataset, Example, GivenBatchOptions
from returnn_tf.datasets.core.declared import Declared
from returnn_tf.datasets.core.stream import StreamDataset
from tests.datasets.recorded import by_name, check_resumption, load_json

FACTS = load_json("batching/batching.json")
CASES = by_name(FACTS["cases"])


def _data(lengths):
    """Return data whose frame t of sequence i of key number k is 10000 k + 1000 i + t + 1."""
    return [
        {
            key: (10000 * number + 1000 * index + 1 + np.arange(frames, dtype="float64"))[:, None]
            for number, (key, frames) in enumerate(sorted(seq.items()))
        }
        for index, seq in enumerate(lengths)
    ]


def _dataset(lengths, **options):
    return Dataset.from_config({"class": "StaticDataset", "data": _data(lengths), **options})


def _same(*frames):
    return [{"data": n, "classes": n} for n in frames]


def _value(entry, key):
    return entry.get(key, entry.get("*")) if isinstance(entry, dict) else entry


def _recorded_rows(batch):
    """Return row and offset of each part: left out if the row is the number of the part and the offset is 0."""
    return [tuple(part[3:]) if len(part) > 3 else (number, 0) for number, part in enumerate(batch["parts"])]


@pytest.mark.parametrize("name", CASES)
def test_recorded_batches(name):
    case = CASES[name]
    options = dict(case["dataset_options"])
    if isinstance(options.get("chunking"), list):
        options["chunking"] = tuple(options["chunking"])
    dataset = _dataset(FACTS["lengths"][case["lengths"]], **options)
    if isinstance(case["batches"], str):
        with pytest.raises((ConfigError, DataError)):
            list(dataset.batches(epoch=1, **case["batch_options"]))
        return
    batches = list(dataset.batches(epoch=1, **case["batch_options"]))
    assert len(batches) == len(case["batches"])
    for batch, expected in zip(batches, case["batches"]):
        assert batch.num_rows == expected["num_slices"]
        assert batch.rows == _recorded_rows(expected)
        assert set(batch.slices) == set(case["batch_options"].get("used_data_keys", dataset.data_keys))
        for key, parts in batch.slices.items():
            assert parts == [(p[0], _value(p[1], key), _value(p[2], key)) for p in expected["parts"]]
            if "max_frames" in expected:
                assert batch.max_frames[key] == _value(expected["max_frames"], key)
        _check_feed(batch, _data(FACTS["lengths"][case["lengths"]]))


def _check_feed(batch, data):
    """Check that every frame of the feed is the one which the slices announce, and all others are zero."""
    for key, parts in batch.slices.items():
        array, sizes = batch.feed[key], batch.feed[key + "/size0"]
        assert sizes.dtype == np.int32
        assert array.shape[:2] == (batch.num_rows, batch.max_frames[key])
        expected = np.zeros_like(array)
        ends = [0] * batch.num_rows
        for (position, start, end), (row, offset) in zip(parts, batch.rows):
            ends[row] = max(ends[row], offset + end - start)
            for frame in range(start, end):
                if 0 <= frame < len(data[position][key]):
                    expected[row, offset + frame - start] = data[position][key][frame]
        np.testing.assert_array_equal(array, expected)
        assert sizes.tolist() == ends
        assert batch.num_frames[key] == sum(end - start for _, start, end in parts)


DERIVED = {
    "seq_tag": ["seq-3", "seq-2", "seq-1", "seq-0"],
    "seq_idx": [0, 1, 2, 3],
    "complete_frac": [0.25, 0.5, 0.75, 1.0],
}


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("key", DERIVED)
@pytest.mark.parametrize("cut", [{}, {"chunking": "3:3"}, {"context_window": 3}, {"shuffle_frames_of_nseqs": 2}])
def test_keys_that_batches_have_by_themselves(cut, key, declared):
    dataset = _dataset(_same(3, 5, 2, 4), seq_ordering="reverse", **cut)
    dtypes = {"seq_tag": "string", "seq_idx": "int32", "complete_frac": "float32"}
    options = (
        {"declared": {key: Declared(dtypes[key], ())}} if declared else {"used_data_keys": [*dataset.data_keys, key]}
    )
    values = [
        (row, position)
        for batch in dataset.batches(max_seqs=3, batch_size=100, **options)
        for row, (position, _, _) in zip(batch.feed[key].tolist(), batch.slices["data"])
    ]
    assert values == [(DERIVED[key][position], position) for _, position in values]
    assert {position for _, position in values} == {0, 1, 2, 3} and (len(values) > 4) == ("chunking" in cut)


def test_a_data_key_of_the_dataset_may_have_the_name_of_a_derived_key():
    data = [{"data": np.zeros([n, 1]), "seq_idx": np.full([n], 7)} for n in (2, 3)]
    (batch,) = Dataset.from_config({"class": "StaticDataset", "data": data}).batches(
        batch_size=100, used_data_keys=["data", "seq_idx"]
    )
    assert batch.feed["seq_idx"].tolist() == [[7, 7, 0], [7, 7, 7]]


@pytest.mark.parametrize(
    "options, text",
    [
        ({"used_data_keys": ["data", "seq_tag"], "recurrent_net": False}, "the names of the sequences, one for each"),
        ({"used_data_keys": ["data", "seq_idx"], "recurrent_net": False}, "data key 'seq_idx', one for each sequence"),
        ({"declared": {"seq_idx": Declared("string", ())}}, "'seq_idx': it is int32, but extern_data declares string"),
        ({"declared": {"seq_tag": Declared("string", (None,))}}, r"'seq_tag': the shape is \[\], .* declares \[time\]"),
    ],
)
def test_derived_keys_that_do_not_fit(options, text):
    with pytest.raises(DataError, match=text):
        list(_dataset(_same(3, 5)).batches(batch_size=100, **options))


def test_the_fraction_of_an_epoch_of_unknown_length():
    stream = _Spoken(estimated_num_seqs=3)
    used = {"used_data_keys": ["data", "complete_frac"], "batch_size": {"data": 100}}
    (batch,) = stream.batches(**used)
    np.testing.assert_allclose(batch.feed["complete_frac"], [1 / 3, 2 / 3, 1, 1, 1, 1], rtol=1e-6)
    with pytest.raises(DataError, match="needs the data key 'complete_frac', but the number of sequences is not known"):
        list(_Spoken().batches(**used))


def test_what_a_batch_says():
    dataset = _dataset(_same(3, 5, 2, 4), seq_ordering="reverse")
    first, second = dataset.batches(epoch=1, batch_size=100, max_seqs=3)
    assert first.seq_tags == ["seq-3", "seq-2", "seq-1"]
    assert first.seq_indices == [3, 2, 1]
    assert [position for position, _, _ in first.slices["data"]] == [0, 1, 2]
    assert (first.number, second.number) == (0, 1)
    assert (first.complete, second.complete) == (0.75, 1.0)
    assert first.num_frames == {"data": 11, "classes": 11}
    assert (first.num_rows, first.num_seqs) == (3, 3)


@pytest.mark.parametrize(
    "options", [{"batch_size": 12}, {"batch_size": 10, "recurrent_net": False}, {"chunking": "3:2"}]
)
def test_start_in_the_middle(options):
    dataset = _dataset(_same(3, 5, 2, 4, 9, 1))
    every = list(dataset.batches(epoch=1, **options))
    for start in range(len(every) + 2):
        rest = list(dataset.batches(epoch=1, start_batch=start, **options))
        assert [batch.slices for batch in rest] == [batch.slices for batch in every[start:]]
        assert [batch.number for batch in rest] == list(range(start, len(every)))
        for batch, other in zip(rest, every[start:]):
            for key in batch.feed:
                np.testing.assert_array_equal(batch.feed[key], other.feed[key])


RESUMED = {
    "whole": {},
    "limits": {"max_seq_length": {"align": 40}, "min_seq_length": 2},
    "padding": {"max_pad_size": 9},
    "chunks": {"chunking": ({"data": 4, "align": 8, "classes": 1}, {"data": 4, "align": 8, "classes": 1})},
    "context": {"context_window": 3},
    "dropped at random": {"seq_drop": 0.3},
    "total": {"max_total_num_seqs": 5},
    "frames": {"recurrent_net": False, "batch_size": 90},
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("case", RESUMED)
def test_resumption_after_a_sequence(case, known, monkeypatch):
    lengths = [{"data": 4 * n, "align": 8 * n, "classes": n} for n in (5, 3, 9, 2, 1, 4, 4, 7, 2, 3)]
    dataset = _dataset(lengths, seq_ordering="random")
    dataset = dataset if known else _unknown(dataset, monkeypatch)
    check_resumption(dataset, 3, **{"batch_size": 100, "max_seqs": 3, **RESUMED[case]})


@pytest.mark.parametrize("options", [{"shuffle_frames_of_nseqs": 3}, {"repeat_epoch": 2}, {"window": 3}])
def test_resumption_after_a_sequence_with_options_of_the_dataset(options):
    check_resumption(_dataset(_same(5, 3, 9, 2, 1, 4, 4, 7), seq_ordering="laplace:.2", **options), 2, batch_size=12)


def test_resumption_after_a_sequence_reads_nothing_before(monkeypatch):
    dataset = _unknown(_dataset(_same(3, 5, 2, 4)), monkeypatch)
    read, original = [], dataset.read
    dataset.read = lambda index, epoch, keys: read.append(index) or original(index, epoch, keys)
    (batch,) = dataset.batches(batch_size=100, max_seqs=1, start_batch=3, start_seq=3)
    assert read == [3] and (batch.number, batch.seq_tags, batch.complete) == (3, ["seq-3"], 1.0)
    assert dataset.batch_stats.num_used == 1


def test_resumption_of_a_stream_keeps_none_of_the_sequences_before():
    stream = _Spoken()
    options = {"batch_size": 100, "max_seqs": 2, "used_data_keys": ["data"]}
    list(stream.batches(1, **options))  # since then the number of sequences is known
    check_resumption(stream, 1, **options)
    reader = stream.open_epoch(1, ["data"])
    reader.jump(4)
    assert list(reader._kept) == [3] and reader.tag(4) == "seq-4"


def test_start_in_the_middle_reads_nothing_before():
    dataset = _dataset(_same(3, 5, 2, 4))
    read, original = [], dataset.read
    dataset.read = lambda index, epoch, keys: read.append(index) or original(index, epoch, keys)
    list(dataset.batches(epoch=1, batch_size=100, max_seqs=1, start_batch=3))
    assert read == [3]


def test_options_replace_those_of_the_dataset():
    dataset = _dataset(_same(5), chunking="2")
    (batch,) = dataset.batches(epoch=1, batch_size=100)
    assert [part[1:] for part in batch.slices["data"]] == [(0, 2), (2, 4), (4, 5)]
    (batch,) = dataset.batches(epoch=1, batch_size=100, chunking=None)
    assert [part[1:] for part in batch.slices["data"]] == [(0, 5)]
    (batch,) = dataset.batches(epoch=1, batch_size=100, chunking=(4, 3), min_chunk_size=2)
    assert [part[1:] for part in batch.slices["data"]] == [(0, 4)]


def test_chunking_by_function():
    seen = {}

    def chunks(*, dataset, seq_idx_start, recurrent_net, used_data_keys, **_):
        seen.update(recurrent_net=recurrent_net, used_data_keys=used_data_keys)
        position = seq_idx_start
        while dataset.has(position):
            end = dataset.lengths(position)["data"]
            assert dataset.sequence(position).data["data"].shape == (end, 1)
            assert dataset.tag(position) == "seq-%d" % position
            yield position, 0, {"data": end, "classes": min(end, 2)}
            position += 1

    dataset = _dataset(_same(3, 5), chunking=chunks)
    (batch,) = dataset.batches(epoch=1, batch_size=100)
    assert batch.slices == {"data": [(0, 0, 3), (1, 0, 5)], "classes": [(0, 0, 2), (1, 0, 2)]}
    assert seen == {"recurrent_net": True, "used_data_keys": ["data", "classes"]}


@pytest.mark.parametrize(
    "result, shown",
    [(3, "returns 3"), ([7], "yields 7"), ([(0, 1)], r"yields \(0, 1\)"), ([("a", 0, 1)], r"yields \('a', 0, 1\)")],
)
def test_chunking_function_yields_something_else(result, shown):
    dataset = _dataset(_same(3, 5), chunking=lambda **_: result)
    with pytest.raises(DataError, match=r"must yield \(position, start, end\), but %s" % shown):
        list(dataset.batches(epoch=1))


def test_chunking_function_goes_too_far():
    dataset = _dataset(_same(3), chunking=lambda **_: iter([(0, 0, 3), (1, 0, 3)]))
    with pytest.raises(DataError, match="yields position 1, but there are 1 sequences"):
        list(dataset.batches(epoch=1))


def test_chunking_by_variance_keeps_the_ratio():
    lengths = [{"data": 400, "classes": 100}] * 5
    dataset = _dataset(
        lengths, chunking=({"data": 40, "classes": 10}, {"data": 20, "classes": 5}), chunking_variance=0.5
    )
    sizes = set()
    for batch in dataset.batches(epoch=3, max_seqs=1, batch_size=1000):
        (_, start, end), (_, class_start, class_end) = batch.slices["data"][0], batch.slices["classes"][0]
        assert (start, end) == (4 * class_start, 4 * class_end)
        sizes.add(end - start)
    assert len(sizes) > 2


def test_axis_of_varying_size():
    images = [{"data": np.full((t, w, 2), w, "float32")} for t, w in ((3, 4), (2, 6), (4, 6), (1, 6))]
    dataset = Dataset.from_config({"class": "StaticDataset", "data": images})
    assert dataset.data_specs["data"].shape == (None, 2)
    first, second = dataset.batches(epoch=1, batch_size=100, max_seqs=2)
    assert first.feed["data"].shape == (2, 3, 6, 2)
    assert first.feed["data/size1"].tolist() == [4, 6]
    assert first.feed["data"][0, :, 4:].sum() == 0
    assert second.feed["data/size1"].tolist() == [6, 6]


def test_value_without_time_axis_and_strings():
    seqs = [
        {"data": np.zeros((t, 1), "float32"), "score": np.float32(t), "text": np.array(["w%d" % t] * t, object)}
        for t in (2, 3)
    ]
    dataset = Dataset.from_config({"class": "StaticDataset", "data": seqs})
    (batch,) = dataset.batches(epoch=1, batch_size=100)
    assert batch.feed["score"].tolist() == [2.0, 3.0]
    assert "score/size0" not in batch.feed
    assert batch.feed["text"].tolist() == [["w2", "w2", ""], ["w3", "w3", "w3"]]
    with pytest.raises(DataError, match="key 'score' has no time axis"):
        list(dataset.batches(epoch=1, batch_size=100, recurrent_net=False))


def test_too_large_sequences_are_reported_once_and_counted(caplog):
    dataset = _dataset(_same(3, 50, 2, 60), name="train")
    with caplog.at_level(logging.WARNING, "returnn_tf"):
        batches = list(dataset.batches(epoch=1, batch_size=20))
    assert [batch.seq_tags for batch in batches] == [["seq-0"], ["seq-1"], ["seq-2"], ["seq-3"]]
    (record,) = caplog.records
    assert "dataset 'train', sequence 'seq-1' (position 1 of epoch 1) has 50 frames" in record.getMessage()
    assert "batch_size 20" in record.getMessage()
    assert dataset.batch_stats.num_oversize == 2


def test_what_was_left_out_is_counted():
    dataset = _dataset(_same(3, 50, 2, 60, 7))
    list(dataset.batches(epoch=1, batch_size=100, max_seq_length=50, min_seq_length=3))
    assert dataset.batch_stats.summary() == "1 dropped as too long, 1 dropped as too short"
    assert dataset.batch_stats.num_used == 3


def test_random_dropping_depends_on_the_epoch_only():
    dataset = _dataset(_same(*range(1, 60)))
    runs = [[b.seq_tags for b in dataset.batches(epoch=e, batch_size=100, seq_drop=0.5)] for e in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert 10 < dataset.batch_stats.num_dropped < 50


@pytest.mark.parametrize(
    "options, text",
    [
        ({"batch_siz": 3}, "unknown option 'batch_siz'. Did you mean 'batch_size'"),
        ({"batch_size": 0}, "'batch_size' is 0; a batch needs at least 1 frame"),
        ({"batch_size": 1.5}, "'batch_size' must be a whole number, a dict.*, got 1.5"),
        ({"max_seqs": 0}, "'max_seqs' is 0; use -1 for no limit"),
        ({"seq_drop": 1.5}, "'seq_drop' must be from 0 to 1, got 1.5"),
        ({"used_data_keys": ["clases"]}, "no data key 'clases'. Did you mean 'classes'"),
        ({"used_data_keys": []}, "'used_data_keys' is empty"),
        ({"used_data_keys": ["seq_tag"]}, "needs a data key of the dataset beside 'seq_tag'; it has: data, classes"),
        ({"max_seq_length": 2.5}, "'max_seq_length' must be an integer"),
        ({"chunking": "50;25"}, "'chunking' is '50;25', but must be 'size:step'"),
        ({"chunking": (50, {"data": 3})}, "with steps by key, the sizes must be a dict"),
        ({"chunking": -5}, "sizes and steps must be integers >= 0"),
        ({"chunking_variance": 1}, "'chunking_variance' is 1, but must be >= 0 and < 1"),
        ({"context_window": 0}, "a window has at least 1 frame"),
        ({"context_window": (3, 4)}, "a pair must hold two dicts"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(ConfigError, match=text):
        list(_dataset(_same(3, 5)).batches(epoch=1, **options))


@pytest.mark.parametrize(
    "chunking, text",
    [
        (
            "4:2",
            "sequence 'seq-0' .*chunking with step 2 for the keys 'data' and 'classes', with 40 and 10 frames.*without",
        ),
        (
            ({"data": 8, "classes": 4}, {"data": 4, "classes": 2}),
            "10 chunks .* but 5 chunks of key 'classes'",
        ),
        ({"data": 4}, "no size for key 'classes', which has 10 frames"),
        (({"data": 4, "classes": 2}, {"data": 4, "classes": 0}), "chunk step 0 for key 'classes' of 10 frames"),
    ],
)
def test_chunks_which_do_not_fit(chunking, text):
    with pytest.raises(DataError, match=text):
        list(_dataset([{"data": 40, "classes": 10}], chunking=chunking).batches(epoch=1, batch_size=100))


def test_empty_dataset():
    with pytest.raises(DataError, match="dataset 'dev' .StaticDataset. is empty: it has no sequences"):
        Dataset.from_config({"class": "StaticDataset", "data": [], "name": "dev"}).batches(epoch=1)


def test_options_are_documented():
    assert all(info.help for info in declared_options(GivenBatchOptions).values())


SIZES = [{"data": n, "align": 60 - 2 * n, "classes": 1 + n // 5} for n in (12, 7, 20, 5, 28, 9, 3, 25)]


def _unknown(dataset, monkeypatch):
    """Let the lengths be known only by reading, as those of audio."""
    monkeypatch.setattr(type(dataset), "lengths_many", lambda self, indices: None)
    monkeypatch.setattr(type(dataset), "lengths", lambda self, index: None)
    return dataset


def _tags(batches):
    return [batch.seq_tags for batch in batches]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"max_seq_length": {"align": 40}},
        {"min_seq_length": {"classes": 3}},
        {"max_seq_length": -3},
        {"batch_size": {"align": 120}},
        {"batch_size": {"data": 40, "align": 120}},
        {"max_pad_size": {"align": 16}},
        {"packed_batch_size": {"align": 120}, "batch_size": None},
    ],
)
def test_a_limit_by_key_counts_whether_the_key_is_used_or_not(options, known, monkeypatch):
    options = {"batch_size": 10000, **options}
    dataset = _dataset(SIZES) if known else _unknown(_dataset(SIZES), monkeypatch)
    expected = _tags(dataset.batches(**options))
    assert len(expected) > 1 or len(expected[0]) < len(SIZES)
    batches = list(dataset.batches(used_data_keys=["data"], **options))
    assert _tags(batches) == expected
    for batch in batches:
        assert sorted(batch.feed) == ["data", "data/size0"] and list(batch.slices) == list(batch.num_frames) == ["data"]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name, value", [("batch_size", 60), ("max_seq_length", 25), ("max_pad_size", 9)])
def test_a_number_counts_for_all_keys_used_or_not(name, value, known, monkeypatch):
    options = {"batch_size": 10000, name: value}
    dataset = _dataset(SIZES) if known else _unknown(_dataset(SIZES), monkeypatch)
    expected, alone = _tags(dataset.batches(**options)), _tags(dataset.batches(**{**options, name: {"data": value}}))
    assert expected != alone
    batches = list(dataset.batches(used_data_keys=["data"], **options))
    assert _tags(batches) == expected
    assert all(sorted(batch.feed) == ["data", "data/size0"] for batch in batches)


@pytest.mark.parametrize(
    "options, read",
    [
        ({"batch_size": 60}, ["align", "classes", "data"]),
        ({"batch_size": {"data": 60}}, ["data"]),  # nothing is read that no limit needs
        ({"batch_size": {"data": 60, "classes": 20}}, ["classes", "data"]),
        ({"batch_size": 60, "max_seqs": 1}, ["data"]),
        ({"batch_size": 60, "max_seqs": 1, "max_seq_length": {"align": 30}}, ["align", "data"]),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_unused_keys_are_read_for_their_lengths_only_if_these_matter_and_are_not_known(
    options, read, known, monkeypatch
):
    dataset = _dataset(SIZES) if known else _unknown(_dataset(SIZES), monkeypatch)
    keys_read, original = set(), dataset.read
    monkeypatch.setattr(
        dataset, "read", lambda index, epoch, keys: keys_read.update(keys) or original(index, epoch, keys)
    )
    list(dataset.batches(used_data_keys=["data"], **options))
    assert sorted(keys_read) == (["data"] if known else read)


@pytest.mark.parametrize("name", ["ConcatDataset", "CombinedDataset"])
@pytest.mark.parametrize("known_first", [True, False])
def test_all_keys_count_if_one_of_several_datasets_knows_no_lengths(name, known_first):
    data = [{"data": np.zeros([5, 3], "float32"), "classes": np.zeros([5], "int32")}] * 3
    known = {"class": "StaticDataset", "data": data, "output_dim": {"data": (3, 2), "classes": (4, 1)}}
    unknown = {"class": "DummyDataset", "input_dim": 3, "output_dim": 4, "num_seqs": 3}
    parts = [known, unknown] if known_first else [unknown, known]
    spec = {"datasets": parts}
    if name == "CombinedDataset":
        keys = {(part, key): key for part in "ab" for key in ("data", "classes")}
        spec = {"datasets": dict(zip("ab", parts)), "data_map": keys}
    dataset = Dataset.from_config({"class": name, **spec})
    options = {"batch_size": 100, "max_seq_length": 30}
    batches = list(dataset.batches(used_data_keys=["classes"], **options))
    assert _tags(batches) == _tags(dataset.batches(**options))
    assert all(list(batch.num_frames) == ["classes"] for batch in batches)


class _Spoken(StreamDataset):
    """A stream whose sequences have a text only if they are odd."""

    def stream(self, epoch, **how):
        for index in range(6):
            data = {"data": np.zeros([2, 1], "float32"), "text": np.zeros([10 * index], "int32")}
            yield Example(
                index=index, tag="seq-%d" % index, data=data if index % 2 or not index else {"data": data["data"]}
            )


def test_sequences_of_a_stream_may_lack_a_key_that_only_counts():
    used = {"batch_size": 100, "used_data_keys": ["data"]}
    assert _tags(_Spoken().batches(max_seq_length=20, **used)) == [["seq-0", "seq-1", "seq-2", "seq-4"]]
    with pytest.raises(DataError, match="sequence 'seq-2' .*: it has no key 'text', only data"):
        list(_Spoken().batches(batch_size=100))


def test_chunks_are_made_of_used_keys_only(caplog):
    options = {"used_data_keys": ["data"], "batch_size": {"data": 60, "align": 1}}
    dataset = _dataset(SIZES, chunking="5:5", name="cut")
    for _ in range(2):
        batches = list(dataset.batches(**options))
    assert _tags(batches) == _tags(dataset.batches(used_data_keys=["data"], batch_size={"data": 60}))
    (told,) = [text for text in caplog.messages if "no effect" in text]
    assert "batch_size of key 'align' has no effect: parts of sequences are made of the used keys only: data." in told


BY_LENGTH = {10: 4, 20: 2, 40: 1}


@pytest.mark.parametrize(
    "frames,options,expected",
    [
        ([5, 5, 5, 5, 5, 5], {}, [4, 2]),  # without batch_size, nothing else limits them
        ([10, 11, 5, 20, 5, 5, 5], {}, [2, 2, 3]),  # the longest one decides, also if it comes last
        ([40, 40, 41, 5, 5], {}, [1, 1, 1, 2]),  # longer than all entries: alone
        ([5, 5, 5, 5], {"max_seqs": 3}, [3, 1]),
        ([5, 5, 5, 5], {"batch_size": 10}, [2, 2]),
        ([5, 25, 5, 5], {"chunking": "10:10"}, [4, 2]),  # of chunks, their lengths count
    ],
)
def test_sequences_by_length(frames, options, expected):
    batches = _dataset(_same(*frames)).batches(max_seqs_by_length=BY_LENGTH, **options)
    assert [batch.num_rows for batch in batches] == expected


def test_length_is_that_of_the_longest_key_that_is_read():
    dataset = _dataset([{"data": 5, "classes": 12, "other": 30}] * 4)
    counts = [
        [batch.num_seqs for batch in dataset.batches(max_seqs_by_length=BY_LENGTH, used_data_keys=keys)]
        for keys in (["data"], ["data", "classes"], None)
    ]
    assert counts == [[4], [2, 2], [1, 1, 1, 1]]


@pytest.mark.parametrize(
    "share,expected", [(None, [5]), (0.5, [5]), (0.4, [2, 3]), (0.1, [2, 1, 2]), (0.0, [2, 1, 1, 1])]
)
def test_share_of_padding(share, expected):
    """Of 5, 5, 15, these are 20 of 45 frames; of 15, 10, 5 of 30; of 10, 12, 2 of 24."""
    batches = _dataset(_same(5, 5, 15, 10, 12)).batches(batch_size=1000, max_pad_share=share)
    assert [batch.num_seqs for batch in batches] == expected


@pytest.mark.parametrize(
    "options,words",
    [
        ({"max_seqs_by_length": {}}, "such as {500: 80, 1000: 40}, got {}\\."),
        ({"max_seqs_by_length": {0: 3}}, "such as"),
        ({"max_seqs_by_length": {500: "80"}}, "such as"),
        ({"max_seqs_by_length": {500: 80}, "recurrent_net": False}, "needs batches of whole sequences"),
        ({"max_pad_share": 1.5}, "max_pad_share"),
        ({"max_pad_share": 0.5, "recurrent_net": False}, "needs batches of whole sequences"),
    ],
)
def test_wrong_limits_by_length(options, words):
    with pytest.raises(ConfigError, match=words):
        _dataset(_same(5)).batches(batch_size=100, **options)


@pytest.mark.parametrize("options", [{}, {"chunking": "4:2"}, {"max_seq_length": 6}, {"min_seq_length": {"data": 5}}])
def test_slice_lengths_are_those_of_batches(options):
    """Of the sequences or chunks that are used, by their positions in a list of sequences; other keys are left out."""
    dataset, order = _dataset(_same(5, 3, 7, 6)), [2, 0, 3]
    expected = [
        (int(position), {"data": int(batch.feed["data/size0"][row])})
        for batch in dataset.batches(max_seqs=1, batch_size=100, seq_order=order, used_data_keys=["data"], **options)
        for row, (position, _, _) in enumerate(batch.slices["data"])
    ]
    assert list(dataset.slice_lengths(1, order, used_data_keys=["data"], **options)) == expected and expected

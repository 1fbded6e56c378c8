"""Order of the sequences in an epoch: all recorded orders, and what a user can do wrong."""

from __future__ import annotations

import os
import pickle

import h5py
import numpy as np
import pytest

from returnn_tf.config import ConfigError, DataError
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.core import seq_order
from returnn_tf.datasets.core import tags as tags_of_corpus
from returnn_tf.datasets.core.seq_order import parse_ordering, partition
from tests.datasets.recorded import ROOT, by_name, load_json

FACTS = load_json("seq_order/seq_order.json")
CASES = by_name(FACTS["cases"])


def _corpus(tmp_path, lengths, tags):
    path = str(tmp_path / "corpus.hdf")
    if os.path.exists(path):
        return path
    with h5py.File(path, "w") as file:
        file["inputs"] = np.zeros((sum(lengths), 1), "float32")
        file["seqLengths"] = np.stack([lengths, np.zeros(len(lengths), int)], axis=1).astype("int32")
        file["seqTags"] = np.array([tag.encode() for tag in tags])
    return path


def _dataset(tmp_path, num_seqs=None, tags=None, **options):
    lengths, tags = FACTS["lengths"][:num_seqs], (tags or FACTS["tags"])[:num_seqs]
    return Dataset.from_config({"class": "HDFDataset", "files": [_corpus(tmp_path, lengths, tags)], **options})


@pytest.mark.parametrize("name", CASES)
def test_recorded_order(name, tmp_path):
    case = CASES[name]
    options = dict(case["options"])
    for option in ("seq_list_filter_file", "seq_order_seq_lens_file"):
        if option in options:
            options[option] = str(ROOT / "seq_order" / options[option])
    if name == "callable":
        options["seq_ordering"] = lambda *, epoch, **_: "sorted" if epoch % 2 else "reverse"
    num_seqs = 3 if name == "sorted_p4_n3" else None
    for epoch, expected in case["order_per_epoch"].items():
        if isinstance(expected, str):
            with pytest.raises((ConfigError, DataError)):
                _dataset(tmp_path, num_seqs, case.get("tags"), **options).seq_order(int(epoch))
            continue
        dataset = _dataset(tmp_path, num_seqs, case.get("tags"), **options)
        assert dataset.seq_order(int(epoch)).tolist() == expected
        assert [seq.index for seq in dataset.sequences(int(epoch))] == expected


@pytest.mark.parametrize("name", FACTS["seeds"])
def test_recorded_seeds(name, tmp_path):
    facts = FACTS["seeds"][name]
    dataset = _dataset(tmp_path, **facts["options"])
    assert [dataset.epoch_seed(epoch) for epoch in range(1, 10)] == facts["seed_for_epoch_1_to_9"]
    assert [dataset.epoch_seed(epoch, nth=2) for epoch in range(1, 10)] == facts["with_nth_2"]


def test_seed_offset_from_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RETURNN_RANDOM_SEED_OFFSET", "5")
    assert _dataset(tmp_path, seq_ordering="random").epoch_seed(1) == 6
    assert _dataset(tmp_path, random_seed_offset=1).epoch_seed(1) == 2
    monkeypatch.setenv("RETURNN_RANDOM_SEED_OFFSET", "five")
    with pytest.raises(ConfigError, match="RETURNN_RANDOM_SEED_OFFSET is 'five', not an integer"):
        _dataset(tmp_path).epoch_seed(1)


def test_explicit_orders(tmp_path):
    dataset = _dataset(tmp_path, seq_ordering="random", partition_epoch=3)
    assert [seq.index for seq in dataset.sequences(2, seq_order=[4, 4, 0])] == [4, 4, 0]
    assert [seq.index for seq in dataset.sequences(2, seq_list=["tag-07", "tag-01"])] == [7, 1]
    with pytest.raises(DataError, match="no sequence 'tga-07'. Did you mean 'tag-07'"):
        list(dataset.sequences(1, seq_list=["tga-07"]))
    with pytest.raises(DataError, match="no sequence at position 23, only 23"):
        list(dataset.sequences(1, seq_order=[23]))
    with pytest.raises(ConfigError, match="seq_list or seq_order, not both"):
        list(dataset.sequences(1, seq_order=[1], seq_list=["tag-01"]))


@pytest.mark.parametrize(
    "text", ["laplce", "laplace:x", "laplace:0", "laplace:1:2:3", "sorted:3", "random:", "bucket:5", ""]
)
def test_bad_ordering(text, tmp_path):
    with pytest.raises(ConfigError, match="seq_ordering"):
        _dataset(tmp_path, seq_ordering=text)


def test_misspelt_ordering_is_named():
    with pytest.raises(ConfigError, match="unknown seq_ordering 'laplce:.5'. Did you mean 'laplace'?"):
        parse_ordering("laplce:.5")


@pytest.mark.parametrize("num_seqs", [0, 1, 7, 23])
@pytest.mark.parametrize("num_parts", [1, 2, 5, 30])
def test_partitions_are_a_cut(num_seqs, num_parts):
    order = np.random.RandomState(1).permutation(num_seqs)
    parts = [partition(order, num_parts=num_parts, part=part) for part in range(num_parts)]
    assert np.concatenate(parts).tolist() == order.tolist()
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_filter_which_leaves_nothing(tmp_path):
    tags = tmp_path / "tags.txt"
    tags.write_text("other\n")
    with pytest.raises(DataError, match="epoch 3 is empty: none of its sequences is in seq_list_filter_file"):
        _dataset(tmp_path, seq_list_filter_file=str(tags)).seq_order(3)


def test_filter_with_tags_that_are_not_there(tmp_path, caplog):
    """They are told once; those that belong to other epochs are known."""
    tags = tmp_path / "tags.txt"
    tags.write_text("tag-03\nother\ntag-01\nmore\n")
    dataset = _dataset(tmp_path, seq_list_filter_file=str(tags), partition_epoch=2)
    assert [dataset.seq_order(epoch).tolist() for epoch in (1, 1)] == [[1, 3]] * 2
    (text,) = caplog.messages
    assert text.endswith("2 of the 4 tags in seq_list_filter_file %r are not in the corpus, e.g. 'more'." % str(tags))


def test_filter_from_pickle(tmp_path):
    path = tmp_path / "tags.pkl"
    path.write_bytes(pickle.dumps(["tag-03", "tag-01"]))
    assert _dataset(tmp_path, seq_list_filter_file=str(path)).seq_order(1).tolist() == [1, 3]


def test_lengths_file_lacks_a_sequence(tmp_path):
    path = tmp_path / "lens.py"
    path.write_text("{'tag-00': 3}")
    dataset = _dataset(tmp_path, seq_ordering="sorted", seq_order_seq_lens_file=str(path))
    with pytest.raises(DataError, match="lacks the sequence 'tag-01'"):
        dataset.seq_order(1)
    path.write_text("{'tag-00': 3, 'tag-01': nan}")
    with pytest.raises(DataError, match="'tag-01': nan is not a pair of sequence tag and length"):
        dataset.seq_order(1)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"partition_epoch": 0}, "option 'partition_epoch' must be at least 1, got 0"),
        ({"partition_epoch": 2, "repeat_epoch": 2}, "partition_epoch=2 and repeat_epoch=2 contradict each other"),
        ({"_num_shards": 2, "_shard_index": 2}, "_shard_index is 2"),
        ({"shuffle_frames_of_nseqs": -1}, "option 'shuffle_frames_of_nseqs' must be at least 0, got -1"),
        ({"seq_odering": "random"}, "unknown option 'seq_odering'. Did you mean 'seq_ordering'"),
        ({"seq_ordering": 3}, "option 'seq_ordering' must be a string or a function, got 3"),
    ],
)
def test_bad_options(options, text, tmp_path):
    with pytest.raises(ConfigError, match=text):
        _dataset(tmp_path, **options)


def test_endless_dataset_has_no_order():
    for option in ({"seq_ordering": "random"}, {"partition_epoch": 2}, {"unique_seq_tags": True}):
        with pytest.raises(ConfigError, match="is endless"):
            next(Dataset.from_config({"class": "Task12AX", **option}).sequences())
    assert next(Dataset.from_config({"class": "Task12AX", "seq_ordering": "sorted"}).sequences()).index == 0


def test_orders_by_length_need_lengths():
    dataset = Dataset.from_config({"class": "Task12AX", "num_seqs": 10, "seq_ordering": "laplace:.2"})
    with pytest.raises(ConfigError, match="needs the lengths of the sequences"):
        dataset.seq_order(1)


def test_range_of_the_seed_offset(tmp_path, monkeypatch):
    """The seed of the first epoch must not be negative."""
    assert _dataset(tmp_path, random_seed_offset=-1, seq_ordering="random").epoch_seed(1) == 0
    assert len(_dataset(tmp_path, random_seed_offset=-1, seq_ordering="random").seq_order(1)) == len(FACTS["lengths"])
    for offset in (-2, 2**32):
        with pytest.raises(
            ConfigError, match="option 'random_seed_offset' must be from -1 to 2147483648, got %d" % offset
        ):
            _dataset(tmp_path, random_seed_offset=offset)
    monkeypatch.setenv("RETURNN_RANDOM_SEED_OFFSET", "-3")
    with pytest.raises(ConfigError, match="RETURNN_RANDOM_SEED_OFFSET must be from -1 to 2147483648, got -3"):
        _dataset(tmp_path).epoch_seed(1)


LENGTHS = [3, 1, 4, 0, 2, 5, 2]


def _frames(epoch=1, **options):
    """Return the label of each frame by sequence, which is also its feature: its number in the corpus."""
    ends = np.cumsum(LENGTHS)
    numbers = [np.arange(end - n, end, dtype="int32") for n, end in zip(LENGTHS, ends)]
    data = [{"data": frames[:, None].astype("float32"), "classes": frames} for frames in numbers]
    spec = {"class": "StaticDataset", "data": data, "output_dim": {"data": (1, 2), "classes": (int(ends[-1]), 1)}}
    dataset = Dataset.from_config({**spec, **options})
    sequences = list(dataset.sequences(epoch))
    for sequence in sequences:
        assert sequence.data["data"][:, 0].tolist() == sequence.data["classes"].tolist()  # frames stay together
    return dataset, [(sequence.index, sequence.data["classes"].tolist()) for sequence in sequences]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("ordering", ["default", "reverse", "random"])
def test_frames_of_several_sequences_change_places(size, ordering):
    plain, shuffled = (_frames(seq_ordering=ordering, shuffle_frames_of_nseqs=n)[1] for n in (0, size))
    assert [(index, len(frames)) for index, frames in plain] == [(index, len(frames)) for index, frames in shuffled]
    for start in range(0, len(plain), size):
        groups = [sorted(f for _, fs in some[start : start + size] for f in fs) for some in (plain, shuffled)]
        assert groups[0] == groups[1]
    assert plain != shuffled
    again = _frames(seq_ordering=ordering, shuffle_frames_of_nseqs=size)[1]
    assert again == shuffled != _frames(epoch=2, seq_ordering=ordering, shuffle_frames_of_nseqs=size)[1]


def test_shuffled_frames_from_the_middle_on():
    """A position does not depend on where reading began; batches have the same frames."""
    dataset, whole = _frames(shuffle_frames_of_nseqs=3)
    assert [seq.data["classes"].tolist() for seq in dataset.sequences(1, start=4)] == [
        frames for _, frames in whole[4:]
    ]
    batches = list(dataset.batches(1, batch_size=6, start_batch=1))
    labels = [
        batch.feed["classes"][row, :length].tolist()
        for batch in batches
        for row, length in enumerate(batch.feed["classes/size0"])
    ]
    assert labels == [frames for _, frames in whole[-len(labels) :]]


def test_frames_which_do_not_belong_together():
    data = [{"data": np.zeros((3, 2), "float32"), "classes": np.zeros(2, "int32")}]
    dataset = Dataset.from_config({"class": "StaticDataset", "data": data, "shuffle_frames_of_nseqs": 2})
    with pytest.raises(DataError, match="shuffle_frames_of_nseqs needs a frame of every key for each frame"):
        list(dataset.sequences(1))


def test_empty_epochs_are_reported_once(tmp_path, caplog):
    dataset = Dataset.from_config({"class": "Task12AX", "name": "train", "num_seqs": 2, "partition_epoch": 3})
    assert [len(list(dataset.sequences(epoch))) for epoch in (1, 2, 3, 6)] == [1, 1, 0, 0]
    text = "dataset 'train' (Task12AXDataset): epoch 3 is empty: 2 sequences are divided into 3 parts"
    assert [message for message in caplog.messages if "empty" in message] == [text + " (partition_epoch=3)"]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("hashing", [hash, lambda tag: len(tag), lambda tag: -1])
def test_lists_of_tags(hashing, last, monkeypatch):
    """Also where tags occur twice, and where different ones have the same hash."""
    monkeypatch.setattr(tags_of_corpus, "hash", hashing, raising=False)
    tags = ["b", "a", "ccc", "b", "dd", "a", "a", ""]
    table = tags_of_corpus.TagTable(len(tags), lambda indices: [tags[index] for index in indices], last=last)
    wanted = ["dd", "a", "b", "", "x", "ccc", "a", "eee", "long one"]
    first = [4, 1, 0, 7, -1, 2, 1, -1, -1]
    assert table.find(wanted).tolist() == ([4, 6, 3, 7, -1, 2, 6, -1, -1] if last else first)
    assert table.find([]).tolist() == []
    assert tags_of_corpus.TagTable(0, lambda indices: [], last=last).find(["a"]).tolist() == [-1]


@pytest.mark.parametrize("collides", [False, True])
def test_tags_have_numbers(collides, monkeypatch):
    """Equal tags have equal ones, also if different tags have the same hash."""
    if collides:
        monkeypatch.setattr(seq_order, "hash", len, raising=False)
    tags = ["a", "b", "a", "cc", "b", "dd", "a"]
    corpus = seq_order.CorpusFacts(len(tags), lambda: None, lambda indices: [tags[index] for index in indices])
    ids = seq_order._ids_of_tags(corpus).tolist()
    assert [[one == other for one in ids] for other in ids] == [[one == other for one in tags] for other in tags]

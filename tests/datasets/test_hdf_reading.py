"""Reading many sequences of HDF files at once: every layout of the arrays, and batches as from data in memory."""

from __future__ import annotations

import contextlib
import tracemalloc

import h5py
import numpy as np
import pytest

from returnn_tf.config import DataError
from returnn_tf.datasets import Dataset, HDFDataset
from returnn_tf.datasets.core.declared import Declared
from returnn_tf.datasets.core.epoch import Epoch
from returnn_tf.datasets.hdf import rows
from returnn_tf.datasets.hdf.file import HDFFile

NUM_SEQS = 60
LAYOUTS = {
    "contiguous": {},
    "chunks": {"chunks": (16, 6)},
    "chunks of columns": {"chunks": (50, 4)},
    "chunks of single rows": {"chunks": (1, 1)},
    "large chunk": {"chunks": (400, 6), "maxshape": (None, 6)},
    "gzip": {"chunks": (32, 6), "compression": "gzip"},
    "shuffled bytes": {"chunks": (32, 6), "shuffle": True},
    "checksums": {"chunks": (32, 3), "fletcher32": True},
    "big-endian": {"dtype": ">f4"},
    "half precision": {"dtype": "f2"},
    "integers": {"dtype": "i1"},
    "bool": {"dtype": "bool"},
}


def _corpus(seed=0):
    rng = np.random.RandomState(seed)
    lengths = rng.randint(0, 12, size=(NUM_SEQS, 2))
    data = [rng.randint(-50, 50, size=(n, 6)) for n in lengths[:, 0]]
    return data, [rng.randint(0, 9, size=n).astype("int32") for n in lengths[:, 1]]


def _write(path, data, classes, userblock=0, **layout):
    with h5py.File(path, "w", userblock_size=userblock) as file:
        frames = np.concatenate(data)
        dtype = layout.pop("dtype", "f4")
        file.create_dataset("inputs", data=frames.astype(dtype), **layout)
        file["targets/data/classes"] = np.concatenate(classes)
        file.create_group("targets/size").attrs["classes"] = [9, 1]
        file["seqLengths"] = np.array([[len(d), len(c)] for d, c in zip(data, classes)], "int32")
        file["seqTags"] = np.array([b"%s-%d" % (path.stem.encode(), i) for i in range(len(data))])
    return str(path)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout, small, tmp_path, monkeypatch):
    if small:  # so that sequences are read in several runs, and alone
        monkeypatch.setattr(rows, "_SMALLEST_GAP", 1)
        monkeypatch.setattr(rows, "_GAP_OF_LIBRARY", 1)
        monkeypatch.setattr(rows, "_LARGEST_RUN", 500)
    data, classes = _corpus()
    path = _write(tmp_path / "a.hdf", data, classes, **LAYOUTS[layout])
    dtype = LAYOUTS[layout].get("dtype", "f4")
    dataset = HDFDataset(files=[path], seq_ordering="random_sample")
    for epoch in (1, 2):
        for seq in dataset.sequences(epoch):
            assert seq.data["data"].dtype == np.dtype(dtype)
            np.testing.assert_array_equal(seq.data["data"], data[seq.index].astype(dtype), seq.tag)
            np.testing.assert_array_equal(seq.data["classes"], classes[seq.index])


def test_file_with_a_block_of_the_user(tmp_path):
    data, classes = _corpus()
    path = _write(tmp_path / "a.hdf", data, classes, userblock=1024)
    for seq in HDFDataset(files=[path], seq_ordering="random").sequences(1):
        np.testing.assert_array_equal(seq.data["data"], data[seq.index].astype("f4"))


def test_chunks_that_were_never_written_are_zero(tmp_path):
    with h5py.File(tmp_path / "a.hdf", "w") as file:
        file.create_dataset("inputs", shape=(400, 2), dtype="f4", chunks=(8, 2))[:8] = 1
        file["seqLengths"] = np.full((100, 2), 4, "int32")
        file["seqTags"] = np.array([b"%d" % i for i in range(100)])
    dataset = HDFDataset(files=[str(tmp_path / "a.hdf")], seq_ordering="random")
    assert {seq.index for seq in dataset.sequences(1) if seq.data["data"].any()} == {0, 1}


def test_file_may_be_open_elsewhere_in_the_process(tmp_path):
    data, classes = _corpus()
    path = _write(tmp_path / "a.hdf", data, classes)
    with h5py.File(path, "r"):
        assert len(list(HDFDataset(files=[path]).sequences(1))) == NUM_SEQS


def test_sequences_keep_their_own_data(tmp_path):
    """The same sequence twice is not one array."""
    data, classes = _corpus()
    path = _write(tmp_path / "a.hdf", data, classes)
    one, other = list(HDFDataset(files=[path]).sequences(1, seq_order=[5] * 6))[-2:]
    one.data["data"][...] = 7
    np.testing.assert_array_equal(other.data["data"], data[5])


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Return the same sequences in two HDF files, and in memory."""
    folder = tmp_path_factory.mktemp("both")
    files, seqs = [], []
    for seed, name in enumerate("ab"):
        data, classes = _corpus(seed)
        files.append(_write(folder / (name + ".hdf"), data, classes))
        seqs += [{"data": d.astype("f4"), "classes": c} for d, c in zip(data, classes)]
    return files, seqs


BATCHES = {
    "frames": {"batch_size": 30},
    "frames by key": {"batch_size": {"data": 40, "classes": 12}},
    "seqs": {"batch_size": 1000, "max_seqs": 7},
    "too long": {"batch_size": 40, "max_seq_length": 8},
    "too long by key": {"batch_size": 40, "max_seq_length": {"classes": 5}},
    "too short": {"batch_size": 40, "min_seq_length": 3},
    "padding": {"batch_size": 100, "max_pad_size": 9},
    "no padding": {"batch_size": 100, "max_pad_size": 0},
    "no padding of a key": {"batch_size": 100, "max_pad_size": {"classes": 0}},
    "packed": {"batch_size": None, "packed_batch_size": {"data": 25}},
    "oversize": {"batch_size": 6},
    "one key": {"batch_size": 50, "used_data_keys": ["classes"]},
    "chunks": {"batch_size": 50, "chunking": "4:2", "used_data_keys": ["data"]},
    "dropped": {"batch_size": 50, "seq_drop": 0.3},
    "total": {"batch_size": 50, "max_total_num_seqs": 20},
    "frame by frame": {"batch_size": 50, "recurrent_net": False},
    "context": {"batch_size": 50, "context_window": 3},
}


@pytest.mark.parametrize("order", ["default", "laplace:.10"])
@pytest.mark.parametrize("name", BATCHES)
def test_batches_are_those_of_data_in_memory(name, order, both):
    files, seqs = both
    hdf = Dataset.from_config({"class": "HDFDataset", "files": files, "seq_ordering": order})
    memory = Dataset.from_config(
        {"class": "StaticDataset", "data": seqs, "seq_ordering": order, "output_dim": {"classes": 9}}
    )
    batches, wanted = list(hdf.batches(2, **BATCHES[name])), list(memory.batches(2, **BATCHES[name]))
    for got, expected in zip(batches, wanted):
        assert got.feed.keys() == expected.feed.keys()
        for key, value in expected.feed.items():
            np.testing.assert_array_equal(got.feed[key], value)
            assert got.feed[key].dtype == value.dtype
        for attribute in ("slices", "rows", "seq_indices", "num_frames", "number", "complete", "num_rows"):
            assert getattr(got, attribute) == getattr(expected, attribute), attribute
        assert got.seq_tags == [hdf.tag(index) for index in got.seq_indices]
    assert len(batches) == len(wanted) > 2
    assert hdf.batch_stats == memory.batch_stats
    rest = list(hdf.batches(2, start_batch=2, **BATCHES[name]))
    assert [batch.number for batch in rest] == list(range(2, len(batches)))


@pytest.mark.parametrize("name", [name for name in BATCHES if name != "frame by frame"])
def test_the_network_gets_the_names_of_the_sequences(name, both):
    hdf = Dataset.from_config({"class": "HDFDataset", "files": both[0]})
    declared = {"seq_tag": Declared("string", ())}
    for batch in hdf.batches(1, declared=declared, **BATCHES[name]):
        assert batch.feed["seq_tag"].tolist() == batch.seq_tags == [hdf.tag(index) for index in batch.seq_indices]


@pytest.mark.parametrize("tags", ["fixed", "variable"])
def test_index_takes_few_bytes_per_sequence(tags, tmp_path):
    """Names of 31 letters, lengths of two keys, and the order of an epoch."""
    count = 60_000
    names = ["corpus/recording-%07d/s%05d" % divmod(number, 37) for number in range(count)]
    with h5py.File(tmp_path / "x.hdf", "w") as file:
        file["inputs"], file.attrs["inputPattSize"] = np.zeros(3 * count, "i1"), 5
        file["targets/data/classes"] = np.zeros(2 * count, "i1")
        file.create_group("targets/size").attrs["classes"] = [9, 1]
        file["seqLengths"] = np.tile(np.array([[3, 2]], "i4"), (count, 1))
        file["seqTags"] = np.array(names, "S31") if tags == "fixed" else names
    options = {"class": "HDFDataset", "files": [str(tmp_path / "x.hdf")], "seq_ordering": "random"}
    tracemalloc.start()
    try:
        dataset = Dataset.from_config(options)
        reader = dataset.open_epoch(1, dataset.data_keys)
        size, most = (number / count for number in tracemalloc.get_traced_memory())
    finally:
        tracemalloc.stop()
    assert size < 40 and most < 150
    assert reader.tag(0) == names[reader.index(0)] and reader.lengths(0) == {"data": 3, "classes": 2}


def test_names_of_many_sequences_are_read_at_the_first_request(tmp_path, monkeypatch):
    """Most processes need none; those of few are read at once, so that damage is told before anything begins."""
    _write(tmp_path / "a.hdf", [np.zeros((2, 1))] * 3, [np.zeros(2, "int32")] * 3)
    reads, original = [], HDFFile._read_tags
    monkeypatch.setattr(HDFFile, "_read_tags", lambda self, root: reads.append(self.path) or original(self, root))
    assert HDFFile(str(tmp_path / "a.hdf")).tags[1] == "a-1" and len(reads) == 1
    monkeypatch.setattr("returnn_tf.datasets.hdf.file._MANY_SEQS", 2)
    dataset = HDFDataset(files=[str(tmp_path / "a.hdf")], seq_ordering="random")
    assert sorted(dataset.seq_order(3)) == [0, 1, 2] and dataset.lengths(1)["data"] == 2 and len(reads) == 1
    assert dataset.tag(2) == "a-2" and not dataset.files[0].is_open
    assert [batch.seq_tags for batch in dataset.batches(1, batch_size=2, seq_order=[1])] == [["a-1"]] and len(
        reads
    ) == 2
    damaged = HDFFile(str(tmp_path / "a.hdf"))
    monkeypatch.setattr("returnn_tf.datasets.hdf.file.byte_strings", lambda block: 1 / 0)
    with pytest.raises(DataError, match="HDF file '.*a.hdf'.*/seqTags can't be read: division by zero"):
        damaged.tags[0]


def test_lengths_whose_sum_is_beyond_all_numbers(tmp_path):
    with h5py.File(tmp_path / "x.hdf", "w") as file:
        file["inputs"] = np.zeros((4, 2), "f4")
        file["seqLengths"] = np.array([[2**63, 0], [2**63, 0], [4, 0]], "u8")
        file["seqTags"] = np.array([b"a", b"b", b"c"])
    with pytest.raises(DataError, match="add up to 18446744073709551620 frames, but /inputs has 4"):
        HDFFile(str(tmp_path / "x.hdf"))


def test_damage_is_found_in_batches_too(tmp_path):
    data = [np.full((30, 6), i) for i in range(50)]
    classes = [np.zeros(1, "int32")] * 50
    path = tmp_path / "a.hdf"
    _write(path, data, classes, chunks=(30, 6), compression="gzip")
    with h5py.File(path, "r") as file:
        offset = file["inputs"].id.get_chunk_info(20).byte_offset
    content = bytearray(path.read_bytes())
    content[offset : offset + 20] = b"x" * 20
    path.write_bytes(content)
    with pytest.raises(
        DataError, match="sequence 'a-20' .position 20 of epoch 1.: HDF file .*key 'data' cannot be read"
    ):
        list(HDFDataset(files=[str(path)]).batches(1, batch_size=1000))


def test_truncated_after_opening_is_an_error(tmp_path):
    data, classes = _corpus()
    path = _write(tmp_path / "a.hdf", data, classes)
    dataset = HDFDataset(files=[path])
    sequences = dataset.sequences(1)
    next(sequences)
    with open(path, "r+b") as file:
        file.truncate(3000)
    with pytest.raises(DataError, match="HDF file .* cannot be read .damaged file"):
        list(sequences)


@pytest.mark.parametrize("start", [0, 1, 17])
@pytest.mark.parametrize("order", ["default", "random"])
def test_sequences_by_blocks_are_those_one_by_one(order, start, both):
    dataset = Dataset.from_config({"class": "HDFDataset", "files": both[0], "seq_ordering": order})
    with contextlib.closing(dataset.open_epoch(3, dataset.data_keys)) as epoch:
        wanted = [epoch.sequence(position) for position in range(start, epoch.num_seqs)]
    got = list(dataset.sequences(3, start=start))
    assert len(got) == len(wanted)
    for mine, other in zip(got, wanted):
        assert (mine.index, mine.tag, mine.position) == (other.index, other.tag, other.position)
        assert type(mine.index) is int
        assert list(mine.data) == list(other.data)
        for key, value in other.data.items():
            np.testing.assert_array_equal(mine.data[key], value)


def test_nothing_is_done_for_a_single_sequence_of_a_block(both, monkeypatch):
    dataset = HDFDataset(files=both[0])
    single = []
    monkeypatch.setattr(Epoch, "_read", lambda self, position: single.append(position))
    assert len(list(dataset.sequences(1))) == dataset.num_seqs
    assert not single


def test_wrong_lengths_in_a_block_name_the_sequence(tmp_path, monkeypatch):
    data, classes = _corpus()
    read_many = HDFFile.read_many

    def with_a_frame_less(self, key, indices):
        values = read_many(self, key, indices)
        return [value[1:] if index == 40 and key == "data" else value for index, value in zip(indices, values)]

    data[40] = np.zeros((5, 6))
    dataset = HDFDataset(files=[_write(tmp_path / "a.hdf", data, classes)])
    monkeypatch.setattr(HDFFile, "read_many", with_a_frame_less)
    found = []
    with pytest.raises(DataError, match="sequence 'a-40' .position 40 .*has 4 frames, but its length was given as 5"):
        found.extend(seq.tag for seq in dataset.sequences(1))
    assert found == ["a-%d" % i for i in range(40)]  # the error comes when it is its turn


@pytest.mark.parametrize("count", [20, 500])
def test_several_files_at_once(tmp_path, count):
    """Names and lengths of many sequences of several files are those of each by itself, one by one or as arrays."""
    paths = []
    for number, num_seqs in enumerate((40, 1, 100)):
        paths.append(str(tmp_path / ("%d.hdf" % number)))
        lengths = np.arange(num_seqs) % 5 + number
        with h5py.File(paths[-1], "w") as file:
            file["inputs"] = np.zeros((lengths.sum(), 1), "float32")
            file["seqLengths"] = lengths[:, None].astype("int32")
            file["seqTags"] = ["%d-%d" % (number, index) for index in range(num_seqs)]
    dataset = Dataset.from_config({"class": "HDFDataset", "files": paths})
    indices = np.random.RandomState(1).randint(0, dataset.num_seqs, count)
    assert dataset.tags_many(indices.tolist()) == [dataset.tag(index) for index in indices.tolist()]
    assert dataset.lengths_many(indices) == {"data": [dataset.lengths(index)["data"] for index in indices.tolist()]}

"""Datasets of configs that are written for RETURNN's interface, and that interface for ours."""

import hashlib
import pickle

import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.datasets import BatchLoader, Dataset, dataset_from_config
from returnn_tf.datasets.core.share import Share
from tests.datasets.combining_cases import all_cases, compare
from tests.datasets.test_combined import static

CASES = {name: entry for name, entry in all_cases().items() if name.startswith("cached2")}

CODE = """
%s
import numpy

class Squares(CachedDataset2):
    def __init__(self, count=4, known=False, **kwargs):
        super().__init__(**kwargs)
        self.count, self.known, self.asked = count, known, []
        self.num_inputs = 1
        self.num_outputs = {"data": (1, 2), "classes": (7, 1)}

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch=epoch, seq_list=seq_list, seq_order=seq_order)
        self.asked.append("epoch %%s" %% epoch)
        if self.known:
            self._num_seqs = self.count
        return True

    def _collect_single_seq(self, seq_idx):
        self.asked.append(seq_idx)
        if seq_idx >= self.count:
            assert not self.known
            return None
        data = numpy.full((seq_idx + 2, 1), seq_idx ** 2, "float32")
        classes = (numpy.arange(seq_idx + 2) %% 7).astype("int32")
        return DatasetSeq(seq_idx=seq_idx, features=data, targets=classes, seq_tag="sq%%i" %% seq_idx)
"""
NEW = "from returnn.datasets.cached2 import CachedDataset2\nfrom returnn.datasets.basic import DatasetSeq"
OLD = "from CachedDataset2 import CachedDataset2\nfrom Dataset import DatasetSeq, init_dataset"


def loaded(tmp_path, code):
    path = tmp_path / "my.config"
    path.write_text("#!rnn.py\n" + code)
    return Config.from_file(str(path))


@pytest.fixture(name="squares")
def _squares(tmp_path):
    return loaded(tmp_path, CODE % NEW).typed("Squares")


@pytest.mark.parametrize("imports", [NEW, OLD, NEW.replace("returnn.datasets.basic", "returnn.datasets")])
@pytest.mark.parametrize("name", CASES)
def test_recorded(name, imports, tmp_path):
    """Sequences and format are the recorded ones, whatever name the class is imported by."""
    folder, case = CASES[name]
    cls = loaded(tmp_path, CODE % imports).typed("Squares")
    options = {"count": len(case["epochs"]["1"]), "known": name == "cached2_known"}
    for spec in ({"class": cls, **options}, cls(**options), lambda: {"class": cls, **options}, lambda: cls(**options)):
        dataset = Dataset.from_config(spec)
        compare(dataset, folder, case)
        assert dataset.num_inputs == case["dataset"]["num_inputs"] and dataset.num_seqs is None
        if "num_seqs_after" in case:
            assert dataset.user.num_seqs == case["num_seqs_after"]


def test_sequences_are_asked_for_in_order(squares):
    """Each once, no earlier than needed; the first call only initialises."""
    dataset = Dataset.from_config({"class": squares, "count": 3})
    assert dataset.user.asked == ["epoch None"]
    sequences = dataset.sequences(2)
    next(sequences)
    assert dataset.user.asked[-2:] == ["epoch 2", 0]
    list(sequences)
    assert dataset.user.asked[-5:] == ["epoch 2", 0, 1, 2, 3]
    assert len(dataset.user.added_data) <= 1


def test_options(squares):
    """Those of all datasets act as usual, and the class gets them, too; others are the class's own."""
    options = {"class": squares, "count": 6, "chunking": "2:2", "name": "train", "seq_ordering": "my own", "window": 3}
    dataset = Dataset.from_config(options, partition_epoch=4)
    assert (dataset.user.name, dataset.user.seq_ordering, dataset.user.partition_epoch) == ("train", "my own", 4)
    assert dataset.data_specs["data"].dim == 3
    batch = next(dataset.batches(1, batch_size=100, max_seqs=3))
    assert batch.feed["data"].shape == (3, 2, 3) and batch.seq_tags == ["sq0", "sq1", "sq1"]
    assert [seq.tag for seq in Dataset.from_config({**options, "unique_seq_tags": True}).sequences(1)][:2] == [
        "sq0",
        "sq1",
    ]
    with pytest.raises(ConfigError, match="'train' .Squares.: option 'window' must be"):
        Dataset.from_config({**options, "window": "x"})
    with pytest.raises(ConfigError, match="unknown option 'coun'"):
        Dataset.from_config({"class": squares, "coun": 3})


def test_as_dataset_of_a_config(tmp_path):
    """By class or as an object, with the settings for evaluation, in a loading process and as an inner dataset."""
    code = CODE % NEW + "train = {'class': Squares, 'count': 5}\ndev = Squares(3)\nchunking = '2:2'\n"
    code += "eval = {'class': 'PostprocessingDataset', 'dataset': train, 'map_seq': lambda data, **_: data}\n"
    config = loaded(tmp_path, code)
    train = dataset_from_config(config, "train")
    assert train.user.chunking == "2:2" and train.opts.chunking == "2:2" and not train.endless
    dev = dataset_from_config(config, "dev")
    assert [seq.tag for seq in dev.sequences(1)] == ["sq0", "sq1", "sq2"] and dev.opts.chunking is None
    assert len(list(dataset_from_config(config, "eval").sequences(1))) == 5
    with BatchLoader.from_config(config, "train") as loader:
        for one, other in zip(loader.batches(1, batch_size=9), train.batches(1, batch_size=9), strict=True):
            np.testing.assert_array_equal(one.feed["data"], other.feed["data"])


def test_shards(squares, tmp_path):
    """Each sequence is in one shard; a class that makes its order by the options divides it itself."""
    parts = [Dataset.from_config({"class": squares, "count": 5, "_num_shards": 2, "_shard_index": i}) for i in range(2)]
    assert [[seq.tag for seq in part.sequences(1)] for part in parts] == [["sq0", "sq2", "sq4"], ["sq1", "sq3"]]
    dataset = Dataset.from_config({"class": squares, "count": 5})
    shares = [[t for b in dataset.batches(1, batch_size=9, share=Share(i, 2)) for t in b.seq_tags] for i in range(2)]
    assert shares == [["sq0", "sq2", "sq4"], ["sq1", "sq3"]]
    ordered = loaded(
        tmp_path,
        CODE % NEW
        + """
class Ordered(Squares):
    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch=epoch, seq_list=seq_list, seq_order=seq_order)
        self.order = self.get_seq_order_for_epoch(epoch, self.count, lambda i: {"data": -i})
        self._num_seqs = len(self.order)
        return True

    def _collect_single_seq(self, seq_idx):
        seq = super()._collect_single_seq(self.order[seq_idx])
        return seq
""",
    ).typed("Ordered")
    for order, expected in (("sorted", [4, 3, 2, 1, 0]), ("random", np.random.RandomState(1).permutation(5))):
        dataset = Dataset.from_config({"class": ordered, "count": 5, "seq_ordering": order})
        assert [seq.tag for seq in dataset.sequences(1)] == ["sq%d" % i for i in expected]
        assert [b.complete for b in dataset.batches(1, batch_size=9, max_seqs=1)] == [0.2, 0.4, 0.6, 0.8, 1.0]
        options = {"class": ordered, "count": 5, "seq_ordering": order, "_num_shards": 2}
        parts = [Dataset.from_config({**options, "_shard_index": i}) for i in range(2)]
        assert [seq.tag for part in parts for seq in part.sequences(1)] == ["sq%d" % i for i in expected]


GENERATING = """
from GeneratingDataset import GeneratingDataset
from returnn.datasets.generating import DatasetSeq

class Noise(GeneratingDataset):
    def __init__(self, **kwargs):
        super().__init__(input_dim=2, output_dim={"classes": (3, 1)}, **kwargs)
        self.labels = {"classes": ["a", "b", "c"]}

    def generate_seq(self, seq_idx):
        return DatasetSeq(seq_idx, self.random.normal(size=(seq_idx + 1, 2)), {"classes": self.random.randint(0, 3, 2)})
"""


def test_generating_dataset(tmp_path):
    """Random numbers by epoch, order by the options, explicit orders, endless by default."""
    cls = loaded(tmp_path, GENERATING).typed("Noise")
    dataset = Dataset.from_config({"class": cls, "num_seqs": 4, "seq_ordering": "reverse"})
    assert dataset.num_outputs == {"classes": (3, 1), "data": (2, 2)} and dataset.labels == {"classes": ["a", "b", "c"]}
    assert dataset.data_specs["classes"].sparse and not dataset.endless
    found = list(dataset.sequences(2))
    assert [seq.tag for seq in found] == ["seq-3", "seq-2", "seq-1", "seq-0"]
    np.testing.assert_array_equal(found[0].data["data"], np.random.RandomState(2).normal(size=(4, 2)))
    assert [seq.tag for seq in dataset.sequences(1, seq_order=[2, 0])] == ["seq-2", "seq-0"]
    assert [seq.tag for seq in dataset.sequences(1, seq_list=["seq-1"])] == ["seq-1"]
    assert Dataset.from_config({"class": cls}).endless


@pytest.mark.parametrize(
    "change, text",
    [
        ("def _collect_single_seq(self, seq_idx): return 3", "has to return a DatasetSeq or None, not 3"),
        ("def _collect_single_seq(self, seq_idx): return None", "is empty: its stream ends without any sequence"),
        ("def _collect_single_seq(self, seq_idx): return 1 / 0", "ZeroDivisionError: division by zero"),
        (
            "def _collect_single_seq(self, seq_idx): return DatasetSeq(seq_idx, numpy.zeros(3))",
            "num_outputs declares 2 axes for key 'data', but the first sequence has 1",
        ),
        (
            "def _collect_single_seq(self, seq_idx):\n"
            "        return DatasetSeq(seq_idx, numpy.zeros((3, 1)), complete_frac='half')",
            "sequence 'seq-0': complete_frac must be a number from 0 to 1, or None, not 'half'",
        ),
        (
            "def get_complete_frac(self, sorted_seq_idx, **_): return sorted_seq_idx + 1",
            "sequence 'sq1': complete_frac must be a number from 0 to 1, or None, not 2",
        ),
        (
            "def finish_epoch(self, **_): return self.nothing",
            "finish_epoch: .*AttributeError: 'Wrong' object has no attribute 'nothing'",
        ),
        (
            "def finish_epoch(self, **_): return self.nothing\n"
            "    def _collect_single_seq(self, seq_idx): return 1 / 0",
            "ZeroDivisionError: division by zero",
        ),
    ],
)
def test_mistakes(change, text, tmp_path):
    """One error that names the dataset and, for code that fails, its line."""
    code = CODE % NEW + "class Wrong(Squares):\n    %s\n" % change
    cls = loaded(tmp_path, code).typed("Wrong")
    with pytest.raises((ConfigError, DataError), match=text):
        list(Dataset.from_config({"class": cls, "name": "train"}).sequences(1))


def test_reading_for_the_format_ends_the_epoch(tmp_path):
    code = CODE % NEW + "    def finish_epoch(self, **_): self.asked.append('end')\n"
    dataset = Dataset.from_config({"class": loaded(tmp_path, code).typed("Squares")})
    assert dataset.data_specs["data"].dim == 1
    assert dataset.user.asked[-1] == "end"  # at once, not when the garbage is collected


def test_read_twice_at_the_same_time(squares):
    """An object can only be in one epoch; the one before is told so."""
    dataset = Dataset.from_config({"class": squares})
    sequences = dataset.sequences(1)
    next(sequences)
    list(dataset.sequences(1))
    with pytest.raises(DataError, match="is read by two at the same time"):
        next(sequences)


# ---- the interface for our datasets


@pytest.fixture(name="init_dataset")
def _init_dataset(tmp_path):
    return loaded(tmp_path, "from returnn.datasets import init_dataset, Dataset\n").typed("init_dataset")


def test_reading_through_the_interface(init_dataset):
    """As scripts do it: an epoch, sequence by sequence; with keys, dims, types, lengths and order."""
    data = [{"data": np.full((n, 2), n, "float32"), "classes": np.arange(n, dtype="int32")} for n in (3, 1, 2)]
    dataset = init_dataset(
        {"class": "StaticDataset", "data": data, "output_dim": {"classes": (4, 1)}, "seq_ordering": "sorted"}
    )
    with pytest.raises(DataError, match="init_seq_order.epoch=.... has to be called first"):
        dataset.is_less_than_num_seqs(0)
    assert dataset.get_data_keys() == ["data", "classes"] and dataset.get_target_list() == ["classes"]
    assert (dataset.get_data_dim("data"), dataset.get_data_dim("classes")) == (2, 4)
    assert (dataset.get_data_shape("data"), dataset.get_data_shape("classes")) == ([2], [])
    assert (dataset.is_data_sparse("data"), dataset.is_data_sparse("classes")) == (False, True)
    assert (dataset.get_data_dtype("data"), dataset.num_inputs) == ("float32", 2)
    assert dataset.get_total_num_seqs() == 3 and dataset.get_all_tags() == ["seq-0", "seq-1", "seq-2"]
    dataset.init_seq_order(epoch=1)
    assert dataset.num_seqs == 3 and dataset.get_current_seq_order() == [1, 2, 0]
    seq_idx, found = 0, []
    while dataset.is_less_than_num_seqs(seq_idx):
        dataset.load_seqs(seq_idx, seq_idx + 1)
        lengths = dataset.get_seq_length(seq_idx)
        assert {key: lengths[key] for key in lengths.keys()} == dict.fromkeys(("data", "classes"), seq_idx + 1)
        assert dataset.get_data(seq_idx, "data").shape == (seq_idx + 1, 2)
        assert dataset.get_targets("classes", seq_idx).tolist() == list(range(seq_idx + 1))
        found.append((dataset.get_tag(seq_idx), round(dataset.get_complete_frac(seq_idx), 2)))
        seq_idx += 1
    assert found == [("seq-1", 0.33), ("seq-2", 0.67), ("seq-0", 1.0)]
    with pytest.raises(DataError, match="sequence 0 is not loaded"):
        dataset.get_data(0, "data")
    dataset.init_seq_order(epoch=2, seq_list=["seq-2", "seq-0"])
    assert (dataset.num_seqs, dataset.get_tag(1), dataset.get_corpus_seq_idx(1)) == (2, "seq-0", 0)
    dataset.init_seq_order(epoch=2, seq_order=[1])
    assert dataset.num_seqs == 1 and dataset.have_seqs()
    dataset.finish_epoch()
    assert isinstance(Dataset.from_config(dataset), Dataset)


def test_streams_through_the_interface(init_dataset, squares):
    """The number shows at the end; datasets of users are themselves."""
    inner = static([1, 2])
    dataset = init_dataset({"class": "PostprocessingDataset", "dataset": inner, "map_seq_stream": lambda seqs: seqs})
    dataset.init_seq_order(epoch=1)
    with pytest.raises(NotImplementedError):
        assert dataset.num_seqs
    assert not dataset.is_less_than_num_seqs(2) and dataset.num_seqs == 2
    user = init_dataset({"class": squares, "count": 2})
    assert type(user) is squares and init_dataset(user) is user
    user.init_seq_order(epoch=1)
    user.load_seqs(0, 2)
    assert [user.get_tag(i) for i in range(2)] == ["sq0", "sq1"] and user.get_data(1, "data").shape == (3, 1)
    assert not user.is_less_than_num_seqs(2) and user.num_seqs == 2
    user.load_seqs(1, 2)
    with pytest.raises(DataError, match="sequence 0 is not loaded"):
        user.get_data(0, "data")


def test_names_of_configs(tmp_path):
    """What configs import; every dataset is an instance of ``Dataset``."""
    code = """
from returnn.datasets.basic import Dataset, DatasetSeq, init_dataset, init_dataset_via_str, get_dataset_class
from returnn.datasets.postprocessing import LaplaceOrdering, Sequential, PostprocessingDataset
from returnn.datasets.generating import Vocabulary, StaticDataset
from returnn.datasets.map import MapDatasetBase
from returnn.tensor import Tensor, TensorDict, Dim, batch_dim
time_dim, feature_dim = Dim(None, name="time"), Dim(3, name="feature", kind=Dim.Types.Feature)
tensor = Tensor("x", dims=[time_dim, feature_dim], dtype="float32")
found = init_dataset_via_str("Task12AX:num_seqs=2")
checks = [isinstance(found, Dataset), isinstance(found.dataset, Dataset), isinstance(1, Dataset),
          get_dataset_class("StaticDataset") is StaticDataset, get_dataset_class("Nope"), isinstance(time_dim, Dim)]
"""
    config = loaded(tmp_path, code)
    assert config.typed("checks") == [True, True, False, True, None, True]
    tensor = config.typed("tensor")
    assert tensor.shape == (None, 3) and tensor.dims[0].description == "time"


def test_a_dataset_seq():
    """Arrays or dicts, with default names."""
    from returnn_tf.compat.user_datasets.cached import DatasetSeq

    seq = DatasetSeq(3, np.zeros((2, 1)), targets={"a": [1, 2, 3]})
    assert (seq.seq_tag, seq.num_frames, seq.get_data_keys()) == ("seq-3", {"data": 2, "a": 3}, ["data", "a"])
    assert DatasetSeq(0, {"x": np.zeros(1)}, np.ones(2)).get_data("classes").tolist() == [1, 1]
    assert hashlib.sha256(pickle.dumps(seq)).hexdigest()

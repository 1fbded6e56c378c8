"""Datasets as configs give them: forms, and options inherited from the top level."""

from __future__ import annotations

import types
from dataclasses import dataclass

import pytest

from returnn_tf.config import Config, ConfigError
from returnn_tf.config.options import declared_options, option
from returnn_tf.config.settings import misspelt_keys
from returnn_tf.datasets import (
    Dataset,
    HDFDataset,
    StaticDataset,
    batch_options_from_config,
    dataset_class,
    dataset_class_names,
    dataset_from_config,
    dataset_from_config_file,
    register_dataset,
)
from returnn_tf.datasets.core.registry import DATASETS
from returnn_tf.datasets.synthetic.tasks import Task12AXDataset
from tests.datasets.recorded import ROOT
from tests.registries import registered_here

HDF = str(ROOT / "hdf" / "simple_dense.hdf")
OTHER = str(ROOT / "hdf" / "simple_dense_extended.hdf")


def _task(**options):
    return {"class": "Task12AX", "num_seqs": 3, **options}


# ---- forms


@pytest.mark.parametrize(
    "spec",
    [
        {"class": "HDFDataset", "files": [HDF, OTHER], "seq_ordering": "sorted"},
        lambda: {"class": "HDFDataset", "files": [HDF, OTHER], "seq_ordering": "sorted"},
        "{'class': 'HDFDataset', 'files': [%r, %r], 'seq_ordering': 'sorted'}" % (HDF, OTHER),
        "HDFDataset:files=[%r, %r],seq_ordering='sorted'" % (HDF, OTHER),
        "HDF:files=[%r, %r],seq_ordering='sorted'" % (HDF, OTHER),
    ],
    ids=["dict", "function", "string", "key=value", "without Dataset"],
)
def test_forms(spec):
    dataset = Dataset.from_config(spec)
    assert isinstance(dataset, HDFDataset)
    assert [file.path for file in dataset.files] == [HDF, OTHER]
    assert dataset.opts.seq_ordering == "sorted"


def test_further_forms():
    assert [file.path for file in Dataset.from_config("%s, %s" % (HDF, OTHER)).files] == [HDF, OTHER]
    assert [file.path for file in Dataset.from_config([HDF]).files] == [HDF]
    assert isinstance(Dataset.from_config("Task12AX"), Task12AXDataset)
    assert Dataset.from_config("Task12AX:num_seqs=3,seq_ordering=laplace:.3").opts.seq_ordering == "laplace:.3"
    assert Dataset.from_config("Task12AXDataset:").num_seqs is None
    dataset = Dataset.from_config(_task())
    assert Dataset.from_config(dataset) is dataset


@pytest.mark.parametrize(
    "spec, text",
    [
        ({"class": "HDFDatset", "files": []}, "unknown dataset class 'HDFDatset'. Did you mean 'HDFDataset'"),
        ({"files": []}, 'has no "class"'),
        ({"class": 3}, '"class" must be a name or a class of datasets, not 3'),
        (3, "a dataset is given as a dict"),
        ("", "not as an empty string"),
        ("Tsk12AX", "unknown dataset class 'Tsk12AX'. Did you mean"),
        ("{'class': open('x')}", "is not a dict of plain values"),
        ("Task12AX:3", "'3' does not have the form key=value"),
        ("Task12AX:num_seq=3", "unknown option 'num_seq'. Did you mean 'num_seqs'"),
        (_task(fixed_random_seed="x"), "option 'fixed_random_seed' must be a whole number or None, got 'x' .a string."),
        (_task(unique_seq_tags="yes"), "option 'unique_seq_tags' must be True or False, got 'yes' .a string."),
        (_task(num_seqs=True), "option 'num_seqs' must be a number or None, got True"),
    ],
)
def test_bad_specs(spec, text):
    with pytest.raises(ConfigError, match=text):
        Dataset.from_config(spec)


def test_errors_name_the_dataset():
    with pytest.raises(ConfigError, match="^dataset 'dev' .Task12AXDataset.: unknown option 'num_sqs'"):
        dataset_from_config({"dev": {"class": "Task12AX", "num_sqs": 3}}, "dev")
    with pytest.raises(ConfigError, match="^config key 'dev': unknown dataset class"):
        dataset_from_config({"dev": {"class": "Task12AY"}}, "dev")


# ---- of a config


def test_names():
    config = Config({"train": _task(), "eval_datasets": {"small": _task(num_seqs=2)}, "dev": None})
    assert dataset_from_config(config, "train").name == "train"
    assert dataset_from_config(config, "small").num_seqs == 2
    assert dataset_from_config(config, "dev") is None
    assert dataset_from_config(config, "eval") is None
    with pytest.raises(ConfigError, match="'eval_datasets' must be a dict"):
        dataset_from_config({"eval_datasets": [1]}, "small")


def test_references_into_the_config():
    values = {"sets": lambda num_seqs: _task(num_seqs=num_seqs), "small": _task(num_seqs=2)}
    assert dataset_from_config({**values, "train": "config:sets(5)"}, "train").num_seqs == 5
    assert dataset_from_config({**values, "train": "config:sets(num_seqs=5)"}, "train").num_seqs == 5
    assert dataset_from_config({**values, "train": "config:small"}, "train").num_seqs == 2
    nested = {"by_name": {"x": _task(num_seqs=3)}, "get": lambda: [_task(num_seqs=4)], "tools": types.SimpleNamespace}
    for text, number in (("by_name['x']", 3), ("get()[0]", 4), ("tools(made=%r).made" % _task(num_seqs=6), 6)):
        assert dataset_from_config({**nested, "train": "config:" + text}, "train").num_seqs == number
    for text, error in (
        ("config:by_name['y']", "by_name has no entry 'y'. Known: x"),
        ("config:sets.other", "sets has no 'other'"),
        ("config:smal", "no 'smal' in the config. Did you mean 'small'"),
        ("config:sets(open('x'))", "arguments must be plain values"),
        ("config:1 + 1", "must be a name of the config"),
        ("config:", "must be a name of the config"),
    ):
        with pytest.raises(ConfigError, match=error):
            dataset_from_config({**values, **nested, "train": text}, "train")


@pytest.mark.parametrize(
    "name, given, error",
    [
        (
            "train",
            "dev",
            r"'dev' is a key of the config, not a class of datasets. Write 'config:dev': on the command line",
        ),
        ("train", "small", r"Write \"config:eval_datasets\['small'\]\""),
        ("dev", "dev", "config key 'dev': it names itself. Leave it out"),
        ("train", "dve", "there is no dataset 'dve', .* Did you mean 'config:dev'"),
        ("train", "Task12AXDatset", "unknown dataset class .* Did you mean 'Task12AXDataset'"),
    ],
)
def test_a_key_instead_of_a_dataset(name: str, given: str, error: str) -> None:
    """``++train dev`` and ``fit("dev")``: the message says how to name the dataset of a key; what it says works."""
    values = {"dev": _task(num_seqs=3), "eval_datasets": {"small": _task(num_seqs=2)}}
    with pytest.raises(ConfigError, match=error):
        dataset_from_config({**values, name: given}, name)
    assert dataset_from_config({**values, "train": "config:dev"}, "train").num_seqs == 3
    assert dataset_from_config({**values, "train": "config:eval_datasets['small']"}, "train").num_seqs == 2


def test_looking_names_up_does_not_hide_misspelt_keys():
    config = Config({"train": _task(), "batch_siez": 3})
    dataset_from_config(config, "train")
    assert misspelt_keys(config) == [("batch_siez", "batch_size")]


def test_datasets_of_functions_get_no_settings():
    """Only a name, and what holds for evaluation; the dict of the function says the rest."""
    top = {"chunking": "50:25", "batching": "random", "window": 3, "cache_size": "1G"}
    for made in (lambda: _task(), lambda: lambda: _task()):
        train = dataset_from_config({**top, "train": made}, "train")
        assert (train.name, train.opts.chunking, train.opts.seq_ordering, train.opts.window) == (
            "train",
            None,
            "default",
            1,
        )
        dev = dataset_from_config({**top, "dev": made}, "dev")
        assert (dev.name, dev.opts.chunking, dev.opts.seq_ordering, dev.opts.window) == ("dev", None, "sorted", 1)
    dev = dataset_from_config({**top, "dev": lambda: _task(seq_ordering="reverse", chunking="3")}, "dev")
    assert (dev.opts.chunking, dev.opts.seq_ordering) == ("3", "reverse")


TOP = {"chunking": "50:25", "batching": "random", "window": 3, "min_chunk_size": 5, "chunking_variance": 0.2}


@pytest.mark.parametrize(
    "name, top, own, expected",
    [
        ("train", TOP, {}, {"chunking": "50:25", "seq_ordering": "random", "window": 3, "min_chunk_size": 5}),
        ("train", TOP, {"chunking": "9", "seq_ordering": "reverse"}, {"chunking": "9", "seq_ordering": "reverse"}),
        ("train", TOP, {"chunking": None}, {"chunking": None}),
        ("train", {}, {}, {"chunking": None, "seq_ordering": "default", "window": 1}),
        ("dev", TOP, {}, {"chunking": None, "seq_ordering": "sorted", "window": 3}),
        ("eval", TOP, {"seq_ordering": "random"}, {"chunking": None, "seq_ordering": "random"}),
        ("small", TOP, {}, {"chunking": None, "seq_ordering": "sorted"}),
        ("dev", {**TOP, "chunk_eval": True}, {}, {"chunking": "50:25"}),
        ("dev", {**TOP, "chunking": "1"}, {}, {"chunking": "1"}),
        ("dev", {**TOP, "on_size_limit": "chunk", "batch_size": 700}, {}, {"chunking": 700}),
        ("dev", {**TOP, "on_size_limit": "chunk", "batch_size": 700}, {"chunking": "3"}, {"chunking": "3"}),
    ],
)
def test_inherited_options(name, top, own, expected):
    values = {"eval_datasets": {name: _task(**own)}} if name == "small" else {name: _task(**own)}
    dataset = dataset_from_config({**top, **values}, name)
    assert {option: getattr(dataset.opts, option) for option in expected} == expected


def test_ranks_read_in_different_orders(monkeypatch):
    config = {"train": _task(), "dev": _task(random_seed_offset=1)}
    assert dataset_from_config(config, "train", rank=2).epoch_seed(1) == 2 * 16127 + 1
    assert dataset_from_config(config, "dev", rank=2).epoch_seed(1) == 2
    assert dataset_from_config(config, "train").epoch_seed(1) == 1
    monkeypatch.setenv("RETURNN_RANDOM_SEED_OFFSET", "7")
    assert dataset_from_config(config, "train", rank=2).epoch_seed(1) == 8


@pytest.mark.parametrize(
    "size, expected", [("4G", 4 << 30), (1000, 1000), ("1k", 1024), (["2M", "0", "3"], 2 << 20), ("5,6,7", 5), (-1, -1)]
)
def test_cache_size(size, expected):
    config = {"train": {"class": "HDFDataset", "files": [HDF]}, "cache_size": size}
    assert dataset_from_config(config, "train").opts.cache_byte_size == expected
    config["train"]["partition_epoch"] = 2
    assert dataset_from_config(config, "train").opts.cache_byte_size == 0
    with pytest.raises(ConfigError, match="'cache_size' is 'big'"):
        dataset_from_config({"train": {"class": "HDFDataset", "files": [HDF]}, "cache_size": "big"}, "train")


def test_batch_options():
    config = {"batch_size": 500, "max_seqs": 20, "max_seq_length": 75, "inc_seq_length": 5, "seq_drop": 0.1}
    options = batch_options_from_config(config, train=True, epoch=3)
    assert options == {"batch_size": 500, "max_seqs": 20, "max_seq_length": 85, "seq_drop": 0.1}
    assert batch_options_from_config(config, train=False, epoch=3) == {"batch_size": 500, "max_seqs": 20}
    for limit, expected in (({"classes": 5}, {"classes": 15}), (-5, -15), (0, 0)):
        got = batch_options_from_config({"max_seq_length": limit, "inc_seq_length": 5}, train=True, epoch=3)
        assert got["max_seq_length"] == expected
    dataset = Dataset.from_config(_task())
    assert len(list(dataset.batches(epoch=1, **batch_options_from_config({}, train=True)))) == 3


def test_config_file(tmp_path):
    path = tmp_path / "my.config"
    path.write_text("#!returnn-tf\ntrain = {'class': 'Task12AX', 'num_seqs': 3}\nbatching = 'default'\n")
    assert dataset_from_config_file(str(path), "train").num_seqs == 3
    assert dataset_from_config_file(str(path), "train", {"batching": "random"}).opts.seq_ordering == "random"


# ---- registry


@pytest.fixture
def forgotten():
    with registered_here(DATASETS):
        yield


def test_registration(forgotten):
    @register_dataset("HalfTask")
    class Half(Task12AXDataset):
        """With an option of its own."""

        @dataclass
        class Options(Task12AXDataset.Options):
            """With one more."""

            half: bool = option(True, help="only half of it")

    assert dataset_class("HalfTask") is Half
    assert Dataset.from_config({"class": "HalfTask", "num_seqs": 3, "half": False}).opts.half is False
    assert register_dataset("HalfTask")(Half) is Half
    with pytest.raises(
        ConfigError,
        match="already taken by tests.*Half. Choose another name for returnn_tf.*StaticDataset",
    ):
        register_dataset("HalfTask")(StaticDataset)


@pytest.mark.parametrize(
    "name, options",
    [
        ("KaldiDataset", {"run_pipes": True, "targets": {"class": "Utf8ByteTargets"}}),
        ("LhotseDataset", {"audio_dir": "wav"}),
        ("NeMoDataset", {"audio_dir": "wav"}),
        ("WebDataset", {"audio_member": "flac"}),
    ],
)
@pytest.mark.parametrize("audio", [{}, {"audio": {}}], ids=["without", "with"])
def test_options_about_audio_that_is_not_read(name, options, audio, tmp_path, caplog):
    Dataset.from_config({"class": name, "path": str(tmp_path), **options, **audio})
    assert ("option %r has no effect: it needs audio" % next(iter(options)) in caplog.text) == (not audio)


OUR_CLASSES = [name for name in dataset_class_names() if not dataset_class(name).__module__.startswith("tests.")]


@pytest.mark.parametrize("name", OUR_CLASSES)
def test_every_class_is_documented(name):
    cls = dataset_class(name)
    assert cls.__doc__
    infos = declared_options(cls.Options)
    assert all(info.description for info in infos.values())
    assert (infos["seq_ordering"].type_name, infos["seq_ordering"].default) == ("str | function", "default")

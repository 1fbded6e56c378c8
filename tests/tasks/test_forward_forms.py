"""Forwarding to code of the config, with a search, without a checkpoint; priors; the network alone."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import h5py
import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.engine.passes.forward_pass import Rows
from tests.run_tasks import run_task

DATA = [
    {"data": np.random.RandomState(i).normal(size=(n, 4)).astype("float32"), "classes": np.arange(n) % 3}
    for i, n in enumerate((3, 5, 2, 4))
]
SET = {"class": "StaticDataset", "data": DATA, "output_dim": {"data": (4, 2), "classes": (3, 1)}}
SETTINGS: dict[str, Any] = {
    "train": {**SET, "seq_ordering": "reverse"},
    "eval": SET,
    "extern_data": {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}},
    "network": {
        "hidden": {"class": "linear", "activation": "tanh", "n_out": 5, "from": "data"},
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "hidden"},
        "sum": {"class": "reduce", "mode": "sum", "axes": "T", "from": "hidden", "is_output_layer": True},
    },
    "batch_size": 100,
    "max_seqs": 3,
    "allow_random_model_init": True,
    "in_python": lambda: None,  # so that the data is loaded in this process
}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(task: str, **changes: Any) -> None:
    assert run_task(Config({**SETTINGS, "task": task, **changes})) == 0


def expected(layer: str) -> list[np.ndarray]:
    """Return the values of each sequence in corpus order, recomputed in numpy."""
    params = Network.from_config(Config(SETTINGS), train=True).get_param_values()
    values = []
    for seq in DATA:
        hidden = np.tanh(seq["data"] @ params["hidden/W"] + params["hidden/b"])
        logits = np.exp(hidden @ params["output/W"] + params["output/b"])
        values.append({"hidden": hidden, "sum": hidden.sum(0), "output": logits / logits.sum(-1, keepdims=True)}[layer])
    return values


class Collect:
    """A callback that keeps what it gets."""

    def init(self, *, model: Any) -> None:
        self.model, self.seen, self.ended = model, [], 0

    def process_seq(self, *, seq_tag: str, outputs: Any) -> None:
        assert outputs["output"] is outputs.data["output"]
        self.seen.append((seq_tag, outputs["output"].raw_tensor, outputs["output"].dims))
        self.sparse_dim = outputs["output"].sparse_dim

    def finish(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("layer, ndim", [("output", 2), ("hidden", 2), ("sum", 1)])
def test_a_callback_gets_each_sequence_cut_to_its_length(layer: str, ndim: int) -> None:
    collect = Collect()
    run(
        "forward", forward_callback=collect, forward_output_layer=layer, forward_data={**SET, "seq_ordering": "default"}
    )
    assert isinstance(collect.model, Network) and collect.ended == 1 and os.listdir(".") == []
    assert [tag for tag, _, _ in collect.seen] == ["seq-%d" % i for i in range(4)]
    for (_, value, dims), wanted in zip(collect.seen, expected(layer)):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
        assert value.ndim == len(dims) == ndim and dims[-1].size == value.shape[-1] and collect.sparse_dim is None


def test_forms_of_a_callback() -> None:
    """An object, its class, or a function which returns one; forward_batch_size counts."""
    made: list[Collect] = []

    def make() -> Collect:
        made.append(Collect())
        return made[-1]

    class Kept(Collect):
        def finish(self) -> None:
            made.append(self)

    run("forward", forward_callback=make, forward_batch_size=5)
    run("forward", forward_callback=Kept, forward_data="train")
    assert [len(collect.seen) for collect in made] == [4, 4]
    assert [tag for tag, _, _ in made[1].seen] == ["seq-3", "seq-2", "seq-1", "seq-0"]  # the order of the dataset


def test_a_callback_of_a_config_file() -> None:
    """Derived from the class that configs import; what it does not implement does nothing."""
    text = """#!returnn
from returnn.forward_iface import ForwardCallbackIface

class Shapes(ForwardCallbackIface):
    def process_seq(self, *, seq_tag, outputs):
        seen.append((seq_tag, outputs["output"].raw_tensor.shape))

seen = []
forward_callback = Shapes
"""
    pathlib.Path("my.config").write_text(text)
    config = Config.from_file("my.config")
    config.update({**{key: value for key, value in SETTINGS.items() if key != "in_python"}, "task": "forward"})
    assert run_task(config) == 0
    assert sorted(config.typed("seen")) == [("seq-%d" % i, (len(seq["data"]), 3)) for i, seq in enumerate(DATA)]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"forward_callback": lambda: 3}, "the object of class int lacks the methods init, process_seq, finish"),
        ({"forward_callback": lambda: None}, "the object of class NoneType lacks"),
        ({"forward_callback": "my_callback"}, "'forward_callback' must be an object with the methods"),
        ({"forward_callback": Collect(), "forward_output_layer": "outptu"}, "outptu"),
        ({"forward_callback": Collect(), "forward_data": "dev"}, "no dataset 'dev'"),
        ({"forward_data": "config:get('dev')"}, "no 'get' in the config"),
        ({"allow_random_model_init": False}, "There is no checkpoint to load"),
    ],
)
def test_mistakes_in_forwarding(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as info:
        run("forward", **changes)
    assert message in str(info.value) and os.listdir(".") == []


def test_errors_of_a_callback_go_through() -> None:
    class Bad(Collect):
        def process_seq(self, *, seq_tag: str, outputs: Any) -> None:
            raise RuntimeError("no space for %s" % seq_tag)

    with pytest.raises(RuntimeError, match="no space for seq-"):
        run("forward", forward_callback=Bad())


def test_data_from_a_function_of_the_config() -> None:
    """As scripts give it on the command line."""
    sets = {"few": {**SET, "data": DATA[:2]}}
    collect = Collect()
    run("forward", forward_callback=collect, forward_data="config:get_dataset('few')", get_dataset=sets.get)
    assert len(collect.seen) == 2


def test_random_parameters_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The network is that of the first epoch."""

    def get_network(epoch: int) -> dict[str, Any]:
        return {**SETTINGS["network"], "hidden": {**SETTINGS["network"]["hidden"], "n_out": 1 + epoch}}

    collect = Collect()
    run("forward", forward_callback=collect, get_network=get_network, network=None, forward_output_layer="hidden")
    assert "There is no checkpoint; 4 parameters have random values." in capsys.readouterr().out
    assert {value.shape[1] for _, value, _ in collect.seen} == {2}


SEARCH = {
    "decision": {"class": "decide", "from": "output", "loss": "edit_distance", "target": "classes"},
    "output": {
        "class": "rec",
        "from": [],
        "max_seq_len": 4,
        "target": "classes",
        "unit": {
            "end": {"class": "compare", "from": "output", "value": 0},
            "embed": {"class": "linear", "activation": None, "n_out": 3, "from": "prev:output"},
            "prob": {"class": "softmax", "from": "embed", "loss": "ce", "target": "classes"},
            "output": {
                "class": "choice",
                "from": "prob",
                "beam_size": 2,
                "target": "classes",
                "initial_output": 0,
            },
        },
    },
}


@pytest.mark.slow
def test_forwarding_with_a_search() -> None:
    """Without a search the layer gives the targets; with one, only decided layers can be written."""
    searched, forced = Collect(), Collect()
    common = {"network": SEARCH, "forward_output_layer": "decision"}
    run("forward", forward_callback=searched, forward_use_search=True, **common)
    run("forward", forward_callback=forced, **common)
    targets = {"seq-%d" % i: seq["classes"].tolist() for i, seq in enumerate(DATA)}
    assert {tag: value.tolist() for tag, value, _ in forced.seen} == targets
    assert {tag: value.tolist() for tag, value, _ in searched.seen} != targets
    assert all(len(value) <= 4 for _, value, _ in searched.seen)
    assert searched.sparse_dim.dimension == 3
    run("forward", output_file="out.hdf", forward_use_search=True, **common)
    with h5py.File("out.hdf") as file:
        assert file["inputs"].shape[0] == sum(len(value) for _, value, _ in searched.seen)
    with pytest.raises(ConfigError, match="with 2 hypotheses of each sequence. Forward a 'decide' layer"):
        run("forward", forward_use_search=True, network=SEARCH, forward_output_layer="output", output_file="no.hdf")


@pytest.mark.parametrize("max_seqs, limit", [(1, 0), (3, 0), (4, 4)])
def test_priors_are_the_mean_over_all_frames(max_seqs: int, limit: int) -> None:
    run("compute_priors", output_file="priors.txt", max_seqs=max_seqs, max_seq_length=limit, seq_drop=0.9)
    frames = np.concatenate([v for v in expected("output") if not limit or len(v) <= limit]).astype("float64")
    np.testing.assert_allclose(np.loadtxt("priors.txt"), np.log(frames.mean(axis=0)), rtol=1e-5)
    lines = pathlib.Path("priors.txt").read_text().splitlines()
    assert len(lines) == 3 and all(len(line.lstrip("-").split("e")[0]) == 20 for line in lines)


@pytest.mark.slow
def test_priors_of_the_epoch_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    """With partition_epoch, each epoch has a part of the frames; load_epoch says which."""
    train = {**SET, "partition_epoch": 2, "seq_ordering": "default"}
    run("train", model="m", num_epochs=2, train=train)
    for epoch in (1, 2):
        run("compute_priors", model="m", load_epoch=epoch, train=train, output_file="priors.%d" % epoch)
        frames = sum(len(seq["data"]) for seq in DATA[2 * epoch - 2 : 2 * epoch])
        text = capsys.readouterr().out
        assert "3 classes over the %d frames that train has in epoch %d, sum 1" % (frames, epoch) in text


def test_priors_of_layers_without_time_or_with_other_axes() -> None:
    """Each sequence counts as one frame; the features may be any axis."""
    network = {
        **SETTINGS["network"],
        "mean": {"class": "reduce", "mode": "mean", "axes": "T", "from": "output", "is_output_layer": True},
        "swapped": {"class": "transpose", "perm": {"T": "F", "F": "T"}, "from": "output", "is_output_layer": True},
    }
    run("compute_priors", network=network, forward_output_layer="mean", output_file="mean.txt")
    values = [value.mean(axis=0) for value in expected("output")]
    np.testing.assert_allclose(np.loadtxt("mean.txt"), np.log(np.mean(values, axis=0)), rtol=1e-5)
    run("compute_priors", network=network, forward_output_layer="swapped", output_file="swapped.txt")
    frames = np.concatenate(expected("output"))
    np.testing.assert_allclose(np.loadtxt("swapped.txt"), np.log(frames.mean(axis=0)), rtol=1e-5)


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({}, ConfigError, "Task compute_priors needs output_file"),
        ({"output_file": "there"}, ConfigError, "output_file 'there' exists already"),
        ({"output_file": "no/folder/x"}, ConfigError, "does not exist. Create it first"),
        ({"output_file": "x", "forward_output_layer": "data:classes"}, ConfigError, ""),
        ({"output_file": "x", "forward_output_layer": "hidden"}, DataError, "these are no probabilities"),
        ({"output_file": "x", "max_seq_length": 1}, DataError, "The training data has no frame"),
        ({"output_file": "x", "train": None}, ConfigError, "no dataset 'train'"),
    ],
)
def test_mistakes_with_priors(changes: dict[str, Any], error: Any, message: str) -> None:
    pathlib.Path("there").write_text("")
    with pytest.raises(error) as info:
        run("compute_priors", **changes)
    assert message in str(info.value) and os.listdir(".") == ["there"]


def test_rows_by_sequence() -> None:
    rows = Rows(np.arange(6).reshape(2, 3), {0: np.array([3, 1])}, ["a", "b"]).each()
    assert [row.tags for row in rows] == [["a"], ["b"]] and rows[1].lengths[0].tolist() == [1]
    assert rows[1].value.tolist() == [[3, 4, 5]]


def test_the_network_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """It is planned and its step is traced as for training, without data; a mistake in its code is an error."""
    run("nop_init_net_train", train=None, eval=None)
    out = capsys.readouterr().out
    assert "hidden" in out and "The graph of a training step has " in out and os.listdir(".") == []
    wrong = {**SETTINGS["network"]["hidden"], "class": "eval", "eval": "source(0) + nothing", "n_out": None}
    del wrong["n_out"], wrong["activation"]
    with pytest.raises(ConfigError, match="nothing"):
        run("nop_init_net_train", network={**SETTINGS["network"], "hidden": wrong})


OLD = ["analyze", "analyze_data", "hyper_param_tuning", "search_server", "debug_shell", "daemon", "classify", "dump"]


@pytest.mark.parametrize("task", OLD)
def test_tasks_of_older_configs(task: str) -> None:
    with pytest.raises(ConfigError, match="The task %r does not exist here: " % task):
        run(task)

"""RASR imports this program: training on what it feeds, posteriors and scores for its features."""

from __future__ import annotations

import importlib
import importlib.util
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import returnn_tf.rasr as package
from returnn_tf.config import ConfigError, DataError
from returnn_tf.rasr import interface
from returnn_tf.rasr.interface import parse_pairs, read_config
from tests.waiting import LONG

NAMES = Path(package.__file__).parent / "names"
DIM, CLASSES = 3, 4
CONFIG = """#!returnn
use_tensorflow = True
batching = %r
batch_size, max_seqs = 100, 3
extern_data = {"data": {"dim": 3}, "classes": {"dim": 4, "sparse": True}}
network = {"output": {"class": "softmax", "from": "data", "loss": "ce", "target": "classes"}}
optimizer = {"class": "adam"}
learning_rate, num_epochs, model = 0.3, %d, "net"
learning_rate_file = "rates"
behavior_version = 21
sprint_interface_dataset_opts = {"input_stddev": 2.0}
"""


class Rasr:
    """Calls the module as RASR does; ``processed`` has the segments in the order of their processing."""

    def __init__(self, num_segments: int = 7, module: Any = interface):
        rng = np.random.RandomState(3)
        self.module = module
        self.data = {}
        for number in range(num_segments):
            align = np.sort(rng.randint(0, CLASSES, size=5 + number)).astype("uint32")
            features = rng.normal(size=(DIM, len(align))) + np.arange(DIM)[:, None] * align
            self.data["corpus/rec/%d" % number] = np.asfortranarray(features.astype("float32")), align
        self.processed: list[str] = []

    def train(self, config: str = "a.config", *, skip: Any = (), output_dim: int = CLASSES) -> None:
        """Train by a PythonTrainer, whose init comes with the first data."""
        names = list(self.data)
        order = self.module.getSegmentList(corpusName="c", segmentList=names, segmentsInfo=None, config=config)
        started = False
        for name in order:
            if name in skip:
                continue
            features, align = self.data[name]
            if not started:
                options = {"targetMode": "target-alignment", "allowDownsampling": False}
                options.update(cudaEnabled=False, cudaActiveGpu=-1, config="action:train,configfile:" + config)
                self.module.init(inputDim=DIM, outputDim=output_dim, **options)
                started = True
            segment = {"features": features, "weights": None, "segmentName": name}
            assert self.module.feedInputAndTargetAlignment(targetAlignment=align, **segment) is None
            self.processed.append(name)
        self.module.exit()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Yield a working directory, after which nothing of a training is left."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    interface._running.clear()


def write_config(epochs: int = 2, order: str = "random", more: str = "") -> None:
    Path("a.config").write_text(CONFIG % (order, epochs) + more)


def scores_of_training() -> dict[int, float]:
    names = {"EpochData": lambda **given: given, "nan": np.nan, "inf": np.inf}
    content = eval(Path("rates").read_text(), names)
    return {epoch: entry["error"]["train_score"] for epoch, entry in content.items() if entry["error"]}


@pytest.mark.slow
def test_training_and_going_on(folder):
    write_config(epochs=2)
    rasr = Rasr()
    rasr.train()
    assert Path("net.002.index").exists()
    epochs = rasr.processed[:7], rasr.processed[7:]
    assert [sorted(epoch) for epoch in epochs] == [list(rasr.data)] * 2
    for number, epoch in enumerate(epochs, 1):
        assert epoch == [list(rasr.data)[i] for i in np.random.RandomState(number).permutation(7)]
    scores = scores_of_training()
    assert scores[2] < scores[1]
    write_config(epochs=3)  # goes on with the third epoch alone
    rasr = Rasr()
    rasr.train(skip=("corpus/rec/3",))  # a segment which RASR leaves out
    assert sorted(rasr.processed) == [name for name in rasr.data if not name.endswith("3")]
    assert scores_of_training()[3] < scores[2]
    check_scorer(rasr)


def check_scorer(rasr: Rasr) -> None:
    """Check scores and posteriors of the trained network against those of its parameters."""
    from returnn_tf.engine.checkpoints import checkpoint

    values = checkpoint.read("net.003")
    Path("priors.txt").write_text(
        "<vector-f32 size='4'>\n" + "\n".join(map(str, np.log([0.1, 0.2, 0.3, 0.4]))) + "\n</v>\n"
    )
    pairs = "configfile:a.config,epoch:3,prior_scale:0.5,prior_file:priors.txt"
    control = {"name": "Sprint.PythonControl", "reference": None, "callback": None, "version_number": 5}
    scorer = interface.init(sprint_unit="PythonFeatureScorer", config=pairs, **control)
    scorer.init(input_dim=DIM, output_dim=CLASSES)
    assert scorer.get_feature_buffer_size() == -1
    forward = "action:forward,configfile:a.config,epoch:3"
    trainer = {"allowDownsampling": False, "cudaEnabled": False, "cudaActiveGpu": -1}
    interface.init(inputDim=DIM, outputDim=CLASSES, targetMode="forward-only", config=forward, **trainer)
    for name, (features, _) in list(rasr.data.items())[:3]:
        for time_, frame in enumerate(features.T):
            scorer.add_feature(feature=frame, time=time_)
        scorer.compute(num_frames=features.shape[1])
        got = np.stack([scorer.get_scores(time=time_) for time_ in range(features.shape[1])])
        scorer.reset(num_frames=features.shape[1])
        z = features.T / 2 @ values["output/W"] + values["output/b"]
        posteriors = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
        expected = -np.log(posteriors) + 0.5 * np.log([0.1, 0.2, 0.3, 0.4])
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        matrix = interface.feedInputForwarding(features=features, weights=None, segmentName=name)
        np.testing.assert_allclose(matrix.T, posteriors, rtol=1e-4, atol=1e-6)
        assert matrix.flags.f_contiguous and matrix.dtype == np.float32
    scorer.exit()
    with pytest.raises(ConfigError, match="RASR has 2 features and 4 outputs, but the network has 3 and 4"):
        scorer.init(input_dim=2, output_dim=CLASSES)
    scorer.add_feature(feature=np.full(DIM, np.nan, "float32"), time=0)
    with pytest.raises(DataError, match="'unknown-seq-name-3': layer 'output' has values that are not finite"):
        scorer.compute(num_frames=1)
    with pytest.raises(DataError, match="RASR says 5 frames, but has given 1"):
        scorer.compute(num_frames=5)
    Path("priors.txt").write_text("1\n2\n")
    with pytest.raises(DataError, match="prior_file 'priors.txt' has 2 numbers, but the network has 4"):
        interface.init(sprint_unit="PythonFeatureScorer", config=pairs, **control)
    with pytest.raises(ConfigError, match="needs prior_scale"):
        interface.init(sprint_unit="PythonFeatureScorer", config="configfile:a.config,epoch:3", **control)
    interface.exit()


def test_dataset_around_the_one_of_rasr(folder):
    more = """
def around(sprint_dataset):
    calls.append(sprint_dataset.name)
    return sprint_dataset
calls = []
sprint_interface_custom_dataset = around
"""
    write_config(epochs=1, order="default", more=more)
    rasr = Rasr()
    rasr.train()
    assert rasr.processed == list(rasr.data)


@pytest.mark.parametrize(
    "options, more, text",
    [
        ({}, "batching = 'sorted'", "lengths"),
        ({"output_dim": 7}, "", "RASR has 3 features and 7 classes, but extern_data declares 3 and 4"),
        ({}, "extern_data['data'] = {'dim': 2}", "RASR has 3 features .* 2 and 4"),
        ({}, "network = {'output': {'class': 'sofmax', 'from': 'data'}}", "the training has failed: .*sofmax"),
        ({}, "sprint_interface_dataset_opts = {'input_std': 1}", "Did you mean 'input_stddev'"),
        ({}, "sprint_interface_custom_dataset = lambda sprint_dataset: 1 / 0", "sprint_interface_custom_dataset"),
    ],
)  # fmt: skip
def test_mistakes_end_rasr(options, more, text, folder):
    """An error in the thread of RASR, in time, and the training ends."""
    write_config(more=more)
    start = time.monotonic()
    with pytest.raises((ConfigError, DataError), match=text):
        Rasr().train(**options)
    training = interface._running.get("training")
    if training is not None:
        with pytest.raises(DataError, match="training has failed"):
            training.end()
    assert time.monotonic() - start < LONG
    assert not [thread for thread in threading.enumerate() if thread.name == "training"]


@pytest.mark.parametrize(
    "config, text",
    [
        ("", "configfile:<config> is missing"),
        ("action:train,configfile:no.config", "'no.config' does not exist"),
        ("action:trian,configfile:a.config", "action:trian is unknown"),
        ("configfile:a.config,epoch", "has 'epoch'"),
    ],
)
def test_texts_that_are_no_config(config, text, folder):
    write_config()
    with pytest.raises(ConfigError, match=text):
        interface.init(inputDim=3, outputDim=4, config=config)


def test_pairs_that_are_no_settings_are_told(folder, capsys):
    """Those that are settings apply."""
    write_config()
    pairs = parse_pairs("action:train,configfile:a.config,num_epochs:7,wrong_key:3")
    assert read_config(pairs, "train").int("num_epochs") == 7
    out = capsys.readouterr()
    assert "pymod-config: wrong_key:3 is no setting" in out.out + out.err and "num_epochs:7" not in out.out + out.err


def test_calls_that_are_not_possible(folder):
    write_config()
    config = "action:train,configfile:a.config"
    with pytest.raises(ConfigError, match="needs \\*.python-segment-order=true"):
        interface.init(inputDim=3, outputDim=4, config=config)
    with pytest.raises(ConfigError, match="target-mode=target-alignment, not target-generic"):
        interface.init(inputDim=3, outputDim=4, config=config, targetMode="target-generic")
    with pytest.raises(ConfigError, match="RASR calls feedInputUnsupervised"):
        interface.feedInputUnsupervised(features=None, weights=None, segmentName="a")
    with pytest.raises(ConfigError, match="unit NnTrainer.pythonControl with action:train is not possible"):
        interface.init(name="Sprint.PythonControl", sprint_unit="NnTrainer.pythonControl", config=config)
    nothing = interface.init(name="Sprint.PythonControl", sprint_unit="x", config="action:nop,configfile:a.config")
    assert nothing.process_segment(name="a") is None


@pytest.mark.parametrize("name", ["SprintInterface", "returnn/SprintInterface", "returnn/sprint/interface"])
def test_names_of_returnn(name):
    spec = importlib.util.spec_from_file_location("named", NAMES / (name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.init is interface.init and module.getSegmentList is interface.getSegmentList
    assert module.exit is interface.exit and module.feedInputForwarding is interface.feedInputForwarding

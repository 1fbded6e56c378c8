"""`returnn-tf run CONFIG --sanity` tells what is wrong with a data set, a network and a learning rate."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.logging.log import log
from returnn_tf.tasks.sanity.gradients import check_gradients
from returnn_tf.tasks.sanity.overfit import stall
from returnn_tf.tasks.sanity.padding import alone, check_alone, check_padding, padded

CONFIG = """
import numpy as np

behavior_version = 21
rng = np.random.default_rng(1)


def sequence(frames):
    classes = rng.integers(3, size=frames).astype("int32")
    data = np.eye(3)[classes] @ weights + 0.1 * rng.normal(size=(frames, 4))
    return {"data": data.astype("float32"), "classes": classes}


weights = rng.normal(size=(3, 4))
seqs = [sequence(3 + i % 5) for i in range(40)]
train = {"class": "StaticDataset", "data": seqs, "output_dim": {"data": (4, 2), "classes": (3, 1)}}
extern_data = {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}}
network = {
    "hidden": {"class": "linear", "activation": "tanh", "n_out": 8, "from": "data"},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "hidden"},
}
optimizer = {"class": "adam"}
learning_rate = 0.05
batch_size = 100
model = "net/network"
log = ["run.log"]
"""
MEAN = "source(0) - tf.reduce_mean(source(0), axis=1, keepdims=True)"
CTC = "network['output']['loss'] = 'ctc'\n"


@pytest.fixture
def sanity(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Any]:
    """Yield a function from further lines of the config to the exit code, and result and problem by check."""
    monkeypatch.chdir(tmp_path)

    def run(more: str = "", *arguments: str) -> tuple[int, dict[str, str], str]:
        (tmp_path / "my.config").write_text(CONFIG + more)
        code = main(["run", "my.config", "--sanity", *arguments])
        captured = capsys.readouterr()
        assert not captured.err, captured.err
        rows = re.findall(r"(?m)^(\S.*?)  +(ok|warning|FAILED|not checked)  +\S", captured.out)
        return code, dict(rows), captured.out

    yield run
    log.configure()


@pytest.mark.slow
def test_all_is_well(sanity: Any, tmp_path: pathlib.Path) -> None:
    """Also no file is written but the log that the config names."""
    code, results, out = sanity()
    assert code == 0 and set(results.values()) == {"ok"} and len(results) == 8, out
    assert "0 failed, 0 warnings" in out and re.search(r"loss [\d.]+ -> [\d.]+ in 100 steps, rate 0.05", out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.config", "run.log"]


#: further lines of the config -> check that fails, or warns, and words of the message
DATA = {
    "labels from 1": (
        "for seq in seqs: seq['classes'] += 1\n", "labels of 'classes'", "FAILED", "The labels begin at 1: subtract 1",
    ),
    "blank in the target": (
        CTC + "seqs[3]['classes'][0] = 3\n", "labels of 'classes'", "FAILED", "3 is the blank of the loss",
    ),
    "one label too large": (
        "seqs[3]['classes'][0] = 7\n", "labels of 'classes'", "FAILED", "label 7 in seq-3, .* 3 classes: 0 to 2",
    ),
    "nothing to learn": (
        "for seq in seqs: seq['classes'] *= 0\n", "labels of 'classes'", "FAILED", "all labels are 0",
    ),
    "NaN": ("seqs[5]['data'][1, 2] = np.nan\n", "features of 'data'", "FAILED", "NaN or Inf in 1 sequences, .* seq-5"),
    "constant": ("for seq in seqs: seq['data'][:] = 2.0\n", "features of 'data'", "FAILED", "features are constant"),
    "labels one too low": (
        "for seq in seqs: seq['classes'] -= 1\n", "labels of 'classes'", "FAILED", "-1 in .* must not be negative",
    ),
    "length limit in seconds": (
        "max_seq_length = 2\n", "length limits", "FAILED", "leaves out 40 of 40 sequences. They have 3 to 7 frames",
    ),
    "batch_size in sequences": ("batch_size = 2\n", "batch_size", "FAILED", "batch_size counts frames, not sequences"),
}  # fmt: skip


@pytest.mark.parametrize("case", DATA)
def test_data(case: str, sanity: Any) -> None:
    more, check, result, words = DATA[case]
    code, results, out = sanity(more)
    assert code == 1 and results[check] == result and re.search(words, out), out
    assert "gradients" not in results and re.search(r"\nMore: returnn-tf explain \w+", out)


DERIVED = """
derived = {"seq_tag": "string", "seq_idx": "int32", "complete_frac": "float32"}
extern_data.update({key: {"shape": (), "dtype": dtype} for key, dtype in derived.items()})
code = "source(0) + 0.1 * source(1) + tf.cast(source(2) + tf.strings.length(source(3)), 'float32') / 40"
network["facts"] = {
    "class": "eval", "from": ["data", *("data:" + key for key in reversed(derived))], "eval": code,
    "out_type": extern_data["data"],
}
network["hidden"]["from"] = "facts"
dev = {**train, "data": seqs[:5], "seq_ordering": "reverse"}
"""


def test_keys_that_all_datasets_have(sanity: Any) -> None:
    code, results, out = sanity(DERIVED)
    assert code == 0 and set(results.values()) == {"ok"}, out
    assert not any(key in check for check in results for key in ("seq_tag", "seq_idx", "complete_frac"))


DEV = """
more = [sequence(5) for _ in range(6)]
dev = {**train, "data": more}
"""
#: the same for datasets besides the training data
OTHER_DATA = {
    "labels": ("more[2]['classes'][1] = 3\n", "dev: labels of 'classes'", "FAILED", "label 3 in seq-2, .* 3 classes"),
    "NaN": ("more[4]['data'][0, 1] = np.inf\n", "dev: features of 'data'", "FAILED", "in 1 sequences, e.g. seq-4"),
    "other features": (
        "for seq in more: seq['data'] += 50\n", "dev: features of 'data'", "warning", "not like those of 'train'",
    ),
    "lengths": (
        CTC + "dev['output_dim'] = train['output_dim']\n"
        "for seq in seqs: seq['classes'] = seq['classes'][:1]\n",
        "dev: frames for the target of 'output'", "FAILED", "6 of 6 sequences have more labels .* e.g. seq-0",
    ),
    "of eval_datasets": (
        "eval_datasets = {'far': {**dev, 'data': [{**seq, 'classes': seq['classes'] + 1} for seq in more]}}\n",
        "far: labels of 'classes'", "FAILED", "declare dim 4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER_DATA)
def test_other_datasets(case: str, sanity: Any) -> None:
    more, check, result, words = OTHER_DATA[case]
    code, results, out = sanity(DEV + more, "++learning_rate", "0.01")
    assert results[check] == result and re.search(words, out) and code == int(result == "FAILED"), out


def test_other_dataset_of_other_features(sanity: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A mismatch with extern_data names the dataset, as in training."""
    with pytest.raises(AssertionError, match="The dataset 'dev' has 5 features for data key 'data', but extern_data"):
        wider = "[{**seq, 'data': np.zeros((5, 5), 'float32')} for seq in more]"
        sanity(DEV + "dev.update(data=%s, output_dim={**train['output_dim'], 'data': (5, 2)})\n" % wider)


@pytest.mark.slow
def test_learning_rate_and_scale_of_features(sanity: Any) -> None:
    """The rate which it suggests is one that learns."""
    code, results, out = sanity("for seq in seqs: seq['data'] *= 100\nlearning_rate = 50.0\n")
    assert code == 1 and results["features of 'data'"] == "warning" and results["overfits one batch"] == "FAILED"
    assert "the features are not normalised" in out and "the learning rate 50 is too large" in out


def test_too_few_frames(sanity: Any) -> None:
    """Labels behind a pooling; sequences that are too short are left out of the batch."""
    pool = (
        "network['pool'] = {'class': 'pool', 'mode': 'max', 'pool_size': (4,), 'padding': 'same', 'from': 'hidden'}\n"
    )
    cut = "for seq in seqs[:-4]: seq['classes'] = seq['classes'][:1]\n"
    code, results, out = sanity(
        CTC + pool + "\n" + cut + "network['output']['from'] = 'pool'\n", "++learning_rate", "0.01"
    )
    assert results["frames for the target of 'output'"] == "FAILED" and code == 1
    assert re.search(
        r"4 of 40 sequences have more labels .* e.g. seq-36, seq-37, seq-38, \.\.\.: their loss is infinite", out
    )
    assert results["gradients"] == "ok"


@pytest.mark.slow
def test_target_that_no_layer_names(sanity: Any) -> None:
    """The number of outputs then follows from the loss alone."""
    code, results, out = sanity(
        CTC + "del network['output']['target']\ntarget = 'classes'\n", "++learning_rate", "0.01"
    )
    assert results["frames for the target of 'output'"] == "FAILED" and code == 1, out


#: further lines of the config -> what is told of output and target whose lengths differ
OTHER_LENGTHS = {
    "in the data": (
        "for seq in seqs: seq['classes'] = np.repeat(seq['classes'], 4)\n",
        r"axis time and .* differ in the data: .*\[frames of the output:\] \[3 .* of the target:\] \[12 .*seq-",
    ),
    "by a layer": (
        "network['hidden'] = {'class': 'conv', 'filter_size': (3,), 'padding': 'valid', 'n_out': 8, 'from': 'data'}\n",
        r"output axis time-2 .* Layers before the output change its lengths \(time-2\): keep them, by padding 'same'",
    ),
}


@pytest.mark.parametrize("case", OTHER_LENGTHS)
def test_output_and_target_of_other_lengths(case: str, sanity: Any) -> None:
    """An op that refuses the batch is a finding."""
    more, words = OTHER_LENGTHS[case]
    code, results, out = sanity(more)
    assert code == 1 and results["computes one batch"] == "FAILED" and re.search(words, out.replace("\n", " ")), out


def test_padding_and_gradients() -> None:
    """A mean over all frames looks at the padding; a layer behind stop_gradient gets no gradient."""
    network = {
        "hidden": {"class": "linear", "activation": "tanh", "n_out": 8, "from": "data"},
        "mean": {
            "class": "eval",
            "from": "hidden",
            "eval": "source(0) - tf.reduce_mean(source(0), axis=1, keepdims=True)",
        },
        "stop": {"class": "eval", "from": "mean", "eval": "tf.stop_gradient(source(0))"},
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "stop"},
    }
    extern_data = {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True}}
    net = Network.from_config(
        Config({"network": network, "extern_data": extern_data, "behavior_version": 21}), train=True
    )
    rng = np.random.default_rng(1)
    lens = np.array([5, 3], "int32")
    feed = {
        "data": rng.normal(size=(2, 5, 4)).astype("float32"), "data/size0": lens,
        "classes": rng.integers(3, size=(2, 5)).astype("int32"), "classes/size0": lens,
    }  # fmt: skip
    found = check_padding(net, feed)
    assert found.result == "FAILED" and "The first layer whose valid frames change is 'mean'." in found.problem
    gradients, slopes = check_gradients(net, feed)
    assert gradients.result == "warning" and "no gradient for hidden/W, hidden/b." in gradients.problem
    assert slopes.result == "ok"
    other = padded(feed, net.extern_data)
    assert other["data"].shape == (2, 10, 4) and (other["data"][1, :3] == feed["data"][1, :3]).all()


#: stride of two filters of 3 frames -> whether 5 more frames of padding show that "same" depends on the length
@pytest.mark.parametrize("stride, shown", [(2, True), (5, False)])
def test_a_sequence_alone(stride: int, shown: bool) -> None:
    """With "same", a stride moves the filter by the longest length of the batch; 5 more frames need not show it."""
    conv = {
        "class": "conv", "n_out": 4, "filter_size": 7, "strides": stride, "padding": "same", "use_time_mask": True,
        "from": "data",
    }  # fmt: skip
    network = {
        "conv": conv,
        "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "conv"},
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "mean"},
    }
    extern_data = {"data": {"dim": 4}, "classes": {"dim": 3, "sparse": True, "shape": ()}}
    rng = np.random.default_rng(1)
    feed = {
        "data": rng.normal(size=(3, 11, 4)).astype("float32"), "data/size0": np.array([11, 10, 7], "int32"),
        "classes": np.array([0, 2, 1], "int32"),
    }  # fmt: skip
    found = {}
    for padding in ("same", "same_static"):
        conv["padding"] = padding
        config = Config({"network": network, "extern_data": extern_data, "behavior_version": 21})
        net = Network.from_config(config, train=True)
        found[padding] = check_padding(net, feed), check_alone(net, feed)
        assert any("'same_static'" in note for note in net.plan.mistakes) == (padding == "same")
    assert [each.result for each in found["same_static"]] == ["ok", "ok"]
    padding_check, alone_check = found["same"]
    assert padding_check.result == ("FAILED" if shown else "ok") and alone_check.result == "FAILED"
    assert "for sequence 1 of the batch" in alone_check.problem or "for sequence 2" in alone_check.problem
    for each in found["same"][1 - shown :]:
        words = "first layer whose valid frames change is 'conv'. Its class is conv: with stride %d, padding 'same'"
        assert words % stride in each.problem
    one = alone(feed, net.extern_data, 1)
    assert one["data"].shape == (1, 10, 4) and one["data/size0"].tolist() == [10] and one["classes"].tolist() == [2]


def test_stall() -> None:
    assert stall([10.0, 8.0, 5.0, 4.99, 4.98]) == 2 and stall([1.0, 2.0]) == 0

"""image_summary, framewise_statistics, decide_keep_beam."""

from __future__ import annotations

import glob
import os
import pathlib
from typing import Any

import numpy as np
import pytest

from returnn_tf.config import ConfigError
from returnn_tf.graph.after_step.sinks import RunInfo
from returnn_tf.logging.log import log
from tests.layers.nets import LENS, fails, feed, net_of, run

PICTURE = {"class": "image_summary", "from": "data:wide"}


def test_pictures_go_to_event_files_in_training(tmp_path: pathlib.Path) -> None:
    from tensorflow.core.util.event_pb2 import Event
    from tensorflow.python.lib.io.tf_record import tf_record_iterator

    net = net_of({"output": {**PICTURE, "max_outputs": 2}}, train=True)
    given = feed()
    with net.sinks, net.sinks.run(RunInfo("train", 1, events=str(tmp_path))):
        for _ in range(2):  # the second one comes too soon
            graph = net.lower(net.convert_feed(given))
            net.sinks.write(graph.sinks, ["x", "y", "z"])
    (path,) = glob.glob(str(tmp_path / "images" / "output" / "*"))
    events = [Event.FromString(record) for record in tf_record_iterator(path)]
    (value,) = [v for event in events for v in event.summary.value]
    assert value.tag == "output" and len(value.tensor.string_val) == 2 + 2  # sizes, then the pictures
    assert value.tensor.string_val[2].startswith(b"\x89PNG")
    np.testing.assert_array_equal(net.run(given).layers["output"].value, given["wide"])


def test_no_pictures_without_event_files_or_training(tmp_path: pathlib.Path) -> None:
    for train, events in ((True, None), (False, str(tmp_path))):
        net = net_of({"output": PICTURE}, train=train)
        with net.sinks, net.sinks.run(RunInfo("train", 1, events=events)):
            net.sinks.write(net.lower(net.convert_feed(feed())).sinks, ["x", "y", "z"])
    assert os.listdir(tmp_path) == []


STATS = {"class": "framewise_statistics", "sil_label_idx": 1, "histogram_num_bins": 4, "from": "p"}
P = {"class": "softmax", "loss": "ce", "target": "labels", "from": "data"}


def test_statistics_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(log, "write", lambda level, text: lines.append(text))
    net = net_of({"p": P, "output": STATS})
    given = feed()
    with net.sinks, net.sinks.run(RunInfo("dev", 3)):
        for _ in range(2):
            net.sinks.write(net.lower(net.convert_feed(given)).sinks, ["x", "y", "z"])
    out = net.run(given)
    assert out.layers["output"].value == 0 and out.layers["output"].value.dtype == "int32"
    p = net.run(given, fetch=["p"]).layers["p"].value
    mask = np.arange(4) < LENS[:, None]
    true = np.take_along_axis(p, given["labels"][..., None], axis=2)[..., 0][mask].astype("float64")
    labels, wrong = given["labels"][mask], (p.argmax(-1) != given["labels"])[mask]
    text = lines[-1]
    assert text.startswith("output, 'dev' epoch 3: accumulated_seq_length 18,")
    found = dict(part.split(" ", 1) for part in text.split(": ", 1)[1].split(", "))
    for suffix, chosen in (("", labels >= 0), ("_sil", labels == 1), ("_no_sil", labels != 1)):
        loss = -np.log(true[chosen]).mean()
        assert int(found["accumulated_seq_length" + suffix]) == 2 * chosen.sum()
        assert float(found["accumulated_loss_ce" + suffix]) == pytest.approx(loss, rel=1e-4)
        assert float(found["accumulated_loss_perplexity" + suffix]) == pytest.approx(np.exp(loss), rel=1e-4)
        assert float(found["accumulated_frame_error" + suffix]) == pytest.approx(wrong[chosen].mean(), rel=1e-4)
        histogram = np.histogram(true[chosen], bins=4, range=(0, 1))[0] / chosen.sum()
        shown = [float(n) for n in found["accumulated_true_label_prob_histogram" + suffix][1:-1].split()]
        np.testing.assert_allclose(shown, histogram, atol=1e-3)


@pytest.mark.slow
def test_decide_keep_beam_keeps_hypotheses_and_scores() -> None:
    loop = {
        "class": "rec", "from": [], "max_seq_len": 3, "unit": {
            "p": {"class": "softmax", "n_out": 5, "from": ["prev:output", "base:mean"]},
            "c": {"class": "choice", "target": "labels", "beam_size": 2, "initial_output": 0, "from": "p"},
            "output": {"class": "linear", "activation": None, "n_out": 3, "from": "c"},
            "end": {"class": "compare", "value": 0, "from": "c"}}}  # fmt: skip
    network: dict[str, Any] = {
        "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "data"},
        "loop": loop,
        "kept": {"class": "decide_keep_beam", "from": "loop", "is_output_layer": True},
        "output": {"class": "decide", "from": "kept"},
        "same": {"class": "decide", "from": "loop", "is_output_layer": True},
    }
    from returnn_tf.compiler.network import Network
    from tests.layers.nets import config_of

    out = Network.from_config(config_of(network), search=True).run(feed(), fetch=["loop"]).layers
    assert len(out["kept"].value) == 2 * len(LENS)
    np.testing.assert_array_equal(out["kept"].value, out["loop"].value)
    np.testing.assert_array_equal(out["kept"].beam_scores, out["loop"].beam_scores)
    np.testing.assert_array_equal(out["output"].value, out["same"].value)
    plain = run({"output": {"class": "decide_keep_beam", "from": "data"}})["output"]
    np.testing.assert_array_equal(plain.value, feed()["data"])


@pytest.mark.parametrize(
    "layer,message",
    [
        ({**PICTURE, "from": "data"}, "is no picture"),
        ({**PICTURE, "max_outputs": 0}, "at least 1"),
        ({**STATS, "from": "data"}, "must be a softmax layer with 'target'"),
        ({**STATS, "sil_label_idx": None}, "sil_label_idx"),
        ({"class": "framewise_statistics", "from": "data"}, "sil_label_idx"),
        ({"class": "decide_keep_beam", "from": ["data", "data"]}, "exactly one source"),
    ],
)
def test_mistakes(layer: dict[str, Any], message: str) -> None:
    if layer.get("from") == "p":
        with pytest.raises(ConfigError, match=message):
            net_of({"p": P, "output": layer})
    else:
        fails(layer, message)


def test_labels_of_silence_exist() -> None:
    for change, message in (({"sil_label_idx": 5}, "only 5 labels"), ({"histogram_num_bins": 0}, "at least 1")):
        with pytest.raises(ConfigError, match=message):
            net_of({"p": P, "output": {**STATS, **change}})

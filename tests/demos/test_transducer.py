"""The transducer demo: trained and searched on a few lines, and its beam scores against the network of the training."""

from __future__ import annotations

import ast
import gzip
import os
from pathlib import Path
from typing import Any, Dict

import decode
import h5py
import numpy
import pytest

import returnn_tf
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "demos" / "digits" / "transducer.config"
BLANK, BEAM = 10, 12
LENS = numpy.array([14, 9, 11], "int32")


def test_train_and_search_few_lines(run_demo, tmp_path):
    os.makedirs(tmp_path / "out")
    sizes = ["--train", "60", "--dev", "10", "--heldout", "20"]
    run_demo(str(ROOT / "tools" / "compose_digit_lines.py"), "out", *sizes)
    output = run_demo("-m", "returnn_tf", str(CONFIG), "++num_epochs", "1")
    assert "output/prob" in output and "ctc" in output
    found = "out/found.py.gz"
    options = ["++task", "search", "++search_output_file", found, "++search_output_file_format", "py"]
    output = run_demo("-m", "returnn_tf", str(CONFIG), *options)
    texts = ast.literal_eval(gzip.decompress((tmp_path / found).read_bytes()).decode())
    assert len(texts) == 20 and set("".join(texts.values())) <= set("0123456789")
    with h5py.File(tmp_path / "out" / "heldout.hdf") as file:
        tags = [tag.decode() for tag in file["seqTags"][:]]
        ends = numpy.cumsum(file["seqLengths"][:, 1])
        references = numpy.split(file["targets/data/classes"][:], ends[:-1])
    errors = sum(decode.edit_distance(list(r), [int(x) for x in texts[t]]) for r, t in zip(references, tags))
    assert "decision: label errors " in output and "%d of %d" % (errors, ends[-1]) in output, output


@pytest.fixture(scope="module")
def searched() -> Dict[str, Any]:
    """Random parameters, random lines, and what the search finds with them."""
    config = returnn_tf.Config.from_file(str(CONFIG))
    net = returnn_tf.Network.from_config(config, search=True)
    rng = numpy.random.default_rng(5)
    params = {name: rng.normal(size=p.shape, scale=0.4).astype("float32") for name, p in net.params.items()}
    net.set_param_values(params)
    feed = {
        "data": rng.uniform(size=(3, LENS.max(), 12)).astype("float32"),
        "data/size0": LENS,
        "classes": numpy.array([[3, 1, 4, 1], [5, 9, 0, 0], [2, 6, 5, 0]], "int32"),
        "classes/size0": numpy.array([4, 2, 3], "int32"),
    }
    return {"params": params, "feed": feed, "found": net.run(feed)}


def test_blanks_are_left_out(searched):
    found = searched["found"]
    output, decision = found.layers["output"], found.layers["decision"]
    best = output.value.reshape(3, BEAM, -1)[:, 0]
    for labels, length, decided, count in zip(best, LENS, decision.value, next(iter(decision.sizes.values()))):
        digits = [label for label in labels[:length] if label != BLANK]
        assert digits == list(decided[:count])
    reference = searched["feed"]["classes"]
    expected = sum(
        decode.edit_distance(list(reference[i][:n]), list(decision.value[i][:m]))
        for i, (n, m) in enumerate(zip(searched["feed"]["classes/size0"], next(iter(decision.sizes.values()))))
    )
    assert found.errors["decision"] == expected


@pytest.mark.parametrize("moved", [True, False])
def test_beam_scores_are_those_of_the_training(searched, moved):
    """Every hypothesis given to the network of the training as the alignment."""
    config = returnn_tf.Config.from_file(str(CONFIG))
    time = SpatialDim("time")
    extern_data = {
        "data": {"dim_tags": [batch_dim, time, FeatureDim("pixels", 12)]},
        "classes": {"dim": 10, "sparse": True},
        "alignment": {"dim_tags": [batch_dim, time], "sparse_dim": FeatureDim("labels", 11), "dtype": "int32"},
    }
    network = {name: dict(layer) for name, layer in config.typed("network").items() if name != "alignment"}
    unit = {name: dict(layer) for name, layer in network["output"]["unit"].items()}
    unit["prob"]["is_output_layer"] = True
    network["output"].update(unit=unit, optimize_move_layers_out=moved)
    config.update({"extern_data": extern_data, "network": network})
    net = returnn_tf.Network.from_config(config, train=False)
    net.set_param_values({name: searched["params"][name] for name in net.params})
    found = searched["found"].layers["output"]
    feed = {name: numpy.repeat(value, BEAM, axis=0) for name, value in searched["feed"].items()}
    feed.update({"alignment": found.value, "alignment/size0": feed["data/size0"]})
    probs = net.run(feed).layers["output/prob"].value.reshape(3, BEAM, -1, 11)
    labels = found.value.reshape(3, BEAM, -1, 1)
    scores = numpy.log(numpy.take_along_axis(probs, labels, axis=3))[..., 0]
    inside = numpy.arange(scores.shape[2]) < LENS[:, None, None]
    numpy.testing.assert_allclose(found.beam_scores, numpy.where(inside, scores, 0).sum(axis=2), rtol=1e-4)
    assert len({tuple(row) for row in found.value.reshape(3 * BEAM, -1)}) == 3 * BEAM

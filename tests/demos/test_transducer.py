"""The transducer demo: trained and searched on a few lines, and its beam scores against the network of the training."""

from __future__ import annotations

import ast
import gzip
import os
from pathlib import Path
from typing import Any, Optional

import decode
import h5py
import numpy as np
import pytest

import returnn_tf
from returnn_tf.tensor import FeatureDim, SpatialDim, batch_dim

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "demos" / "digits" / "transducer.config"
BLANK, BEAM = 10, 12
LENS = np.array([14, 9, 11], "int32")
FEED = {
    "data": np.random.default_rng(1).uniform(size=(3, 14, 12)).astype("float32"),
    "data/size0": LENS,
    "classes": np.array([[3, 1, 4, 1], [5, 9, 0, 0], [2, 6, 5, 0]], "int32"),
    "classes/size0": np.array([4, 2, 3], "int32"),
}


@pytest.mark.slow
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
        ends = np.cumsum(file["seqLengths"][:, 1])
        references = np.split(file["targets/data/classes"][:], ends[:-1])
    errors = sum(decode.edit_distance(list(r), [int(x) for x in texts[t]]) for r, t in zip(references, tags))
    assert "decision: label errors " in output and "%d of %d" % (errors, ends[-1]) in output, output


def network_of(config: returnn_tf.Config, **choice: Any) -> dict[str, Any]:
    """Return a copy of the network of the demo with other options of the choice."""
    network = {name: dict(layer) for name, layer in config.typed("network").items()}
    unit = {name: dict(layer) for name, layer in network["output"]["unit"].items()}
    unit["output"].update(choice)
    network["output"]["unit"] = unit
    return network


def search(params: Optional[dict[str, Any]] = None, **choice: Any) -> Any:
    """Return what the search finds in random lines, and the parameters, random ones if none are given."""
    config = returnn_tf.Config.from_file(str(CONFIG))
    config.set("network", network_of(config, **choice))
    net = returnn_tf.Network.from_config(config, search=True)
    rng = np.random.default_rng(5)
    if params is None:
        params = {name: rng.normal(size=p.shape, scale=0.4).astype("float32") for name, p in net.params.items()}
        params["output/rec/prob/b"][BLANK] = 4.0  # as in a trained network, most frames are blank
    net.set_param_values(params)
    return net.run(FEED), params


@pytest.fixture(scope="module")
def searched() -> Any:
    """Return the result without recombination, so that every score is that of one alignment."""
    return search(recombine=None, recombine_blank=None)


def digits_of(found: Any) -> list[list[tuple[int, ...]]]:
    """For every line the digits of its hypotheses."""
    rows = found.layers["output"].value.reshape(3, BEAM, -1)
    return [[tuple(x for x in row[:n] if x != BLANK) for row in beam] for beam, n in zip(rows, LENS)]


@pytest.mark.slow
def test_blanks_are_left_out(searched):
    found, _ = searched
    decision = found.layers["decision"]
    decided = [tuple(row[:n]) for row, n in zip(decision.value, decision.sizes[1])]
    assert decided == [hypotheses[0] for hypotheses in digits_of(found)]
    references = [row[:n] for row, n in zip(FEED["classes"], FEED["classes/size0"])]
    assert found.errors["decision"] == sum(map(decode.edit_distance, map(list, references), map(list, decided)))


@pytest.mark.slow
def test_hypotheses_with_the_same_digits_are_one(searched):
    found, params = searched
    recombined, _ = search(params)
    for hypotheses, alignments in zip(digits_of(recombined), digits_of(found)):
        assert len(set(hypotheses)) == BEAM > len(set(alignments))
    assert (recombined.layers["output"].beam_scores[:, 0] > found.layers["output"].beam_scores[:, 0]).all()


@pytest.mark.slow
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
    found, params = searched
    network = network_of(config)
    del network["alignment"]
    network["output"]["unit"]["prob"]["is_output_layer"] = True
    network["output"]["optimize_move_layers_out"] = moved
    config.update({"extern_data": extern_data, "network": network})
    net = returnn_tf.Network.from_config(config, train=False)
    net.set_param_values({name: params[name] for name in net.params})
    found = found.layers["output"]
    feed = {name: np.repeat(value, BEAM, axis=0) for name, value in FEED.items()}
    feed.update({"alignment": found.value, "alignment/size0": feed["data/size0"]})
    probs = net.run(feed).layers["output/prob"].value.reshape(3, BEAM, -1, 11)
    labels = found.value.reshape(3, BEAM, -1, 1)
    scores = np.log(np.take_along_axis(probs, labels, axis=3))[..., 0]
    inside = np.arange(scores.shape[2]) < LENS[:, None, None]
    np.testing.assert_allclose(found.beam_scores, np.where(inside, scores, 0).sum(axis=2), rtol=1e-4)
    assert len({tuple(row) for row in found.value.reshape(3 * BEAM, -1)}) == 3 * BEAM

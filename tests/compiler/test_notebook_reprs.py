"""What notebooks show of objects: tables with the facts, escaped; search results as text."""

from __future__ import annotations

import re
from typing import Any

import pytest

import returnn_tf
from returnn_tf.config import Config, ConfigError
from returnn_tf.util.html import Html, table
from tests.feeds import random_feed

SETTINGS: dict[str, Any] = {
    "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}},
    "network": {
        "loop": {
            "class": "rec", "from": "data", "unit": {
                "s": {"class": "linear", "n_out": 3, "activation": "tanh", "from": ["data:source", "prev:s"]},
                "output": {"class": "copy", "from": "s"},
            },
        },
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "loop"},
    },
    "learning_rate": 0.01,
}  # fmt: skip


def text_of(html: str) -> str:
    """Return the text of a page, tags as single spaces."""
    return " ".join(re.sub("<[^>]*>", " ", html).split())


def test_network_plan_and_layers() -> None:
    plan = returnn_tf.Network.plan(Config(SETTINGS), train=True)
    page = plan._repr_html_()
    assert page.count("<table>") == page.count("</table>") == 1 and "<svg" in page and page.count("<details>") == 1
    assert "loop/s linear [B, F|3] float32 39" in text_of(page)
    assert "loss ce on output, target data:classes" in text_of(page) and "parameters in 4 arrays" in text_of(page)
    assert repr(plan) == "<Plan output, 4 layers, 47 parameters in 4 arrays, 0.2 KiB as float32>"
    assert "parameter output/W [3, 2] float32" in text_of(plan.layers["output"]._repr_html_())
    data = text_of(plan.layers["output"].output._repr_html_())
    assert "1 batch B batch dynamic" in data and "feature F" in data


def test_run_and_config() -> None:
    config = Config({**SETTINGS, "name": "<b>", "function": random_feed})
    net = returnn_tf.Network.from_config(config, train=True)
    assert repr(net) == "<Network to train, 47 parameters>" and "<svg" in net._repr_html_()
    result = net.run(random_feed(net.extern_data), train=False)
    assert "output" in text_of(result._repr_html_()) and "BTF" in text_of(result._repr_html_())
    assert "lengths" in result.layers["output"]._repr_html_()
    page = config._repr_html_()
    assert "&lt;b&gt;" in page and "<b>" not in page and "random_feed" in page and "learning_rate 0.01" in text_of(page)


def test_dataset_and_trainer() -> None:
    dataset = returnn_tf.Dataset.from_config({"class": "Task12AXDataset", "num_seqs": 7})
    text = text_of(dataset._repr_html_())
    assert "sequences: 7" in text and "classes int32 labels 2" in text and "num_seqs 7" in text
    config = Config(SETTINGS)
    trainer = returnn_tf.Trainer(returnn_tf.Network.from_config(config, train=True), config)
    assert "Trainer, 0 steps" in trainer._repr_html_() and repr(trainer) == "<Trainer, 0 steps, <History 0 epochs>>"


@pytest.mark.slow
def test_search_gives_texts() -> None:
    """Labels by their names, beside the references, with the errors."""
    loop = {
        "output": {"class": "choice", "target": "classes", "beam_size": 3, "from": "prob", "initial_output": 0},
        "emb": {"class": "linear", "n_out": 2, "activation": None, "from": "output", "initial_output": 0},
        "prob": {"class": "softmax", "target": "classes", "from": ["data:source", "prev:emb"], "loss": "ce"},
    }
    network = {"output": {"class": "rec", "from": "data", "target": "classes", "unit": loop}}
    config = Config({**SETTINGS, "network": network, "target": "classes"})
    net = returnn_tf.Network.from_config(config, search=True)
    data = {"class": "Task12AXDataset", "num_seqs": 3}
    found = returnn_tf.search(net, data)
    assert len(found) == 3 and [each.tag for each in found] == ["seq-0", "seq-1", "seq-2"]
    first = found[0]
    assert len(first.n_best) == 3 and first.n_best[0] == (first.score, first.text)
    assert first.text == " ".join(map(str, first.labels)) and first.reference is not None
    wrong = sum(a != b for a, b in zip(first.text.split(), first.reference.split()))
    assert 0 <= first.errors.total <= wrong and first.errors.reference == len(first.reference.split())
    assert found.errors.reference == sum(each.errors.reference for each in found)
    assert repr(found).startswith("<SearchResults 3 sequences, label errors ") and len(found.worst(2)) == 2
    assert first.reference in found._repr_html_() and len(returnn_tf.search(net, data, num_seqs=1)) == 1
    with pytest.raises(ConfigError, match="search=True"):
        returnn_tf.search(returnn_tf.Network.from_config(config), data)


def test_tables_are_escaped() -> None:
    page = table(("<a>",), [("x & y",), (Html("<i>z</i>"),)])
    assert "&lt;a&gt;" in page and "x &amp; y" in page and "<i>z</i>" in page

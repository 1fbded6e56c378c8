"""The code that the pages of docs/ show runs and gives the output that they show."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from returnn_tf import blocks
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.engine.checkpoints.params import save_checkpoint
from returnn_tf.engine.training.load_model import load_network
from tests import processes
from tests.docs.run_page import blocks_of, is_run, same

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
WITH_CODE = [
    path.relative_to(ROOT).as_posix() for path in PAGES if any(map(is_run, blocks_of(path.read_text(encoding="utf8"))))
]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE)
def test_code_runs(page: str, tmp_path: pathlib.Path) -> None:
    """In a process of its own, since layers that a page registers would be seen by other tests."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = processes.run(["-m", "tests.docs.run_page", str(ROOT / page)], cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"ran [1-9]\d* blocks", done.stdout)


def test_pages_in_folders_are_run() -> None:
    assert {"README.md", "docs/data.md", "docs/develop/extending.md"} <= set(WITH_CODE)


def test_blocks() -> None:
    page = "# X\n\n<!-- file: a.config -->\n```python\nx = 1\n```\n\ntext\n\n```console\n$ returnn-tf layers\n```\n"
    found = [(block.mark, block.language, block.text, block.line) for block in blocks_of(page)]
    assert found == [("file: a.config", "python", "x = 1\n", 5), ("", "console", "$ returnn-tf layers\n", 11)]
    assert [is_run(block) for block in blocks_of(page)] == [False, True]


def test_language_model_in_a_search(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parameters of a language model that is a network of its own get into the loop of the page."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/guide/search-and-transducers.md").read_text(encoding="utf8")
    (block,) = [block for block in blocks_of(page) if "preload_from_files" in block.text]
    shown: dict[str, Any] = {}
    exec(block.text, shown)
    labels = {"dim": 1001, "sparse": True}
    lm = blocks.lstm_language_model("output", source="data:delayed", target="data", dim=1024, embedding_dim=256)
    trained = Network.from_config(Config({"network": lm, "extern_data": {"data": labels, "delayed": labels}}))
    save_checkpoint(trained, "lm/net.020")
    prob = {"class": "softmax", "n_out": 1001, "from": "prev:output"}
    end = {"class": "compare", "from": "output", "value": 0}
    loop = {"class": "rec", "from": [], "max_seq_len": 3, "unit": {**shown["unit"], "prob": prob, "end": end}}
    config = Config(
        {
            "network": {"output": loop},
            "extern_data": {"data": {"dim": 3}, "labels": {**labels, "available_for_inference": False}},
            "preload_from_files": shown["preload_from_files"],
            "allow_random_model_init": True,
        }
    )
    found = load_network(config, search=True)[0].get_param_values()
    for name, value in trained.get_param_values().items():
        np.testing.assert_array_equal(found["output/rec/lm/" + name], value)


@pytest.mark.parametrize(
    "output, expected, result",
    [
        ("a\nb\n", "a\nb", True),
        ("a\nb\nc\n", "a\n...\nc", True),
        ("a\nb", "a", False),
        ("a", "", True),
        ("x 1.5 y", "x ... y", True),
    ],
)
def test_outputs_are_compared(output: str, expected: str, result: bool) -> None:
    assert same(output, expected) is result

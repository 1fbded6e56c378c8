"""The fingerprint of a config, with the values that real configs have."""

from __future__ import annotations

from typing import Any

import pytest

from returnn_tf.config import Config
from returnn_tf.engine.support.fingerprint import changes, fingerprint, settings

OGG = {
    "class": "OggZipDataset",
    "path": ["/data/train-a.zip", "/data/train-b.zip"],
    "audio": {"norm_mean": "/data/stats.mean.txt"},
    "epoch_wise_filter": {(1, 5): {"max_mean_len": 50}, (5, 10): {"max_mean_len": 100}},
}
CORPUS = {
    "class": "LibriSpeechCorpus",
    "path": "/data/LibriSpeech",
    "epoch_wise_filter": {(1, 5): {"use_new_filter": True, "max_mean_len": 50, "subdirs": ["train-clean-100"]}},
}
META = {
    "class": "CombinedDataset",
    "datasets": {"a": OGG, "b": CORPUS},
    "data_map": {("a", "data"): "data", ("b", "data"): "data"},
    "sampling_sizes": None,
}
SETS = {"class": "X", "keys": {"/a/b", "c"}, "more": {frozenset(["/x/y"]): (1, ("/p/q", 2))}}


def moved(value: Any) -> Any:
    """Return the value as it is after all its files have moved."""
    if isinstance(value, dict):
        return {moved(key): moved(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(moved(item) for item in value)
    return "/elsewhere" + value if isinstance(value, str) and value.startswith("/") else value


@pytest.mark.parametrize("dataset", [OGG, CORPUS, META, SETS], ids=lambda dataset: dataset["class"])
def test_datasets_with_any_keys(dataset: dict[str, Any]) -> None:
    """Keys may be tuples; without folders a dataset is the same one after its files have moved."""
    config, elsewhere = Config({"train": dataset}), Config({"train": moved(dataset)})
    assert settings(config, folders=False) == settings(elsewhere, folders=False)
    assert changes(settings(config), settings(elsewhere)) == ["train"]
    assert fingerprint(config) == fingerprint(Config({"train": dict(dataset)})) != fingerprint(elsewhere)


def test_a_filter_for_other_epochs_is_a_change() -> None:
    other = {**OGG, "epoch_wise_filter": {(1, 6): {"max_mean_len": 50}, (5, 10): {"max_mean_len": 100}}}
    for folders in (True, False):
        before, now = (settings(Config({"train": dataset}), folders=folders) for dataset in (OGG, other))
        assert changes(before, now) == ["train"]

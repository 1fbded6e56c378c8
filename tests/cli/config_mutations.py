"""Whole configs with random mistakes in them: settings, datasets, optimizers, pretraining. A number is one of them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from typing import Any, Callable

from returnn_tf.config.options import declared_options
from returnn_tf.config.settings import all_settings
from returnn_tf.datasets import Dataset
from returnn_tf.datasets.core.registry import DATASETS
from returnn_tf.engine.update.optimizers import OPTIMIZERS
from tests.compiler.mutations import VALUES, Settings, copied

_NETWORK = {
    "h": {"class": "linear", "activation": "tanh", "n_out": 4, "from": "data", "L2": 0.01},
    "rec": {"class": "rec", "from": "h", "unit": "lstm", "n_out": 3, "updater_opts": {"gradient_clip": 1.0}},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "rec"},
}
_SEARCH = {
    "output": {"class": "rec", "from": "data", "unit": {
        "embed": {"class": "linear", "activation": None, "n_out": 3, "from": "prev:output"},
        "prob": {"class": "softmax", "from": ["data:source", "embed"], "n_out": 2, "loss": "ce"},
        "output": {"class": "choice", "from": "prob", "beam_size": 3, "target": "classes", "initial_output": 0}}},
    "decision": {"class": "decide", "from": "output", "is_output_layer": True, "loss": "edit_distance"},
}  # fmt: skip
_DATA = {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}
_TASK = {"class": "Task12AXDataset", "num_seqs": 5, "chunking": "20:10", "partition_epoch": 2}


def corpus() -> dict[str, Settings]:
    """Return the settings of whole configs by name."""
    common = {"behavior_version": 21, "extern_data": _DATA, "train": _TASK, "dev": {**_TASK, "chunking": None}}
    return {
        "training": {
            **common, "network": _NETWORK, "optimizer": {"class": "adam", "epsilon": 1e-8}, "num_epochs": 3,
            "learning_rate": 0.01,
            "learning_rate_control": "newbob_multi_epoch", "newbob_multi_num_epochs": 3, "batch_size": {"data": 100},
            "max_seqs": 4, "cleanup_old_models": {"keep_best_n": 2}, "gradient_clip_global_norm": 5.0,
            "eval_datasets": {"other": {"class": "StaticDataset", "data": [{"data": [[0.0] * 9], "classes": [1]}]}},
        },
        "pretraining": {
            **common, "network": _NETWORK, "num_epochs": 5, "learning_rates": [0.1, 0.2], "adam": True,
            "pretrain": {"repetitions": {"default": 1, "final": 2}, "construction_algo": "from_input"},
        },
        "old": {
            "num_inputs": 9, "num_outputs": {"classes": (2, 1)}, "network": _NETWORK, "train": _TASK, "nadam": True,
            "newbob_relative_error_threshold": 0, "chunking": "10:5", "max_seq_length": {"classes": 75},
        },
        "search": {
            **common, "network": _SEARCH, "task": "search", "search_output_layer": "decision", "search_data": "dev",
            "eval": _TASK, "search_output_file": "out", "optimizer": {"class": "sgd"},
        },
        "ranks": {
            **common, "network": _NETWORK, "use_horovod": True, "horovod_reduce_type": "param",
            "horovod_param_sync_step": 5, "dynamic_learning_rate": {"interval": 3, "decay": 0.5},
            "profile": {"steps": 3}, "loss_spike": {"factor": 4.0},
        },
    }  # fmt: skip


def _value(rng: random.Random) -> Any:
    return copied(rng.choice(VALUES))


def set_any(settings: Settings, rng: random.Random) -> None:
    """Set some setting to any value."""
    settings[rng.choice(sorted(all_settings()))] = _value(rng)


def drop(settings: Settings, rng: random.Random) -> None:
    del settings[rng.choice(sorted(settings))]


def _dicts(settings: Settings) -> list[dict[Any, Any]]:
    """Return all dicts in the settings, but those of networks."""
    found, todo = [], [value for key, value in settings.items() if key != "network"]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            found.append(value)
            todo += value.values()
        elif isinstance(value, (list, tuple)):
            todo += value
    return found


def change_entry(settings: Settings, rng: random.Random) -> None:
    """Give an entry of a dict another value or another key, or drop it."""
    inner = rng.choice([value for value in _dicts(settings) if value])
    key = rng.choice(list(inner))
    value = inner.pop(key)
    kind = rng.randrange(3)
    if kind:
        inner[key if kind == 1 else "%ss" % key] = _value(rng) if kind == 1 else value


def set_option(settings: Settings, rng: random.Random) -> None:
    """Give a dataset or an optimizer an option that it declares, with any value."""
    choices: list[tuple[dict[Any, Any], Any]] = []
    for inner in _dicts(settings):
        name = inner.get("class")
        for registry in (DATASETS, OPTIMIZERS):
            cls = registry.find(name) if isinstance(name, str) else None
            if cls is not None:
                choices.append((inner, getattr(cls, "Options", cls)))
    inner, options = rng.choice(choices)
    inner[rng.choice(sorted(declared_options(options)))] = _value(rng)


def set_class(settings: Settings, rng: random.Random) -> None:
    """Name another class of dataset or optimizer."""
    inner = rng.choice([value for value in _dicts(settings) if "class" in value])
    inner["class"] = rng.choice([*DATASETS.names(), *OPTIMIZERS.names(), "Nothing", 7])


def use_object(settings: Settings, rng: random.Random) -> None:
    """Put an object of Python where a dict or a number belongs: a function, a class, a dataset."""
    key = rng.choice(sorted(settings))
    settings[key] = rng.choice([lambda: 7, lambda **_: {}, Dataset, object(), range(3), {1, 2}, frozenset("ab")])


MUTATIONS: tuple[Callable[[Settings, random.Random], None], ...] = (
    set_any, set_any, set_any, drop, change_entry, change_entry, set_option, set_option, set_class, use_object,
)  # fmt: skip


def mutated(configs: Mapping[str, Settings], number: int) -> tuple[str, Settings]:
    """Return the name of the config that number ``number`` begins with, and its mutated settings."""
    rng = random.Random(number)
    name = rng.choice(sorted(configs))
    settings = copied(configs[name])
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        with contextlib.suppress(KeyError, IndexError):  # a mutation may find nothing left to change
            rng.choice(MUTATIONS)(settings, rng)
    return name, settings

"""preload_from_files: which parameters are loaded from which name, for which tasks, and the errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.engine.checkpoints import checkpoint, preload
from returnn_tf.engine.checkpoints.checkpoint import CheckpointInfo
from returnn_tf.engine.training.engine import Engine
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.util.lazy_tf import tf

STORED = {"output/rec/input/W": [1.0, 2.0], "output/rec/out/b": [3.0]}


@pytest.fixture
def other(tmp_path) -> str:
    path = str(tmp_path / "lm.007")
    save(path, STORED)
    return path


def save(path: str, values: dict[str, Any]) -> None:
    arrays = {name: np.array(value, "float32") for name, value in values.items()}
    checkpoint.save(path, arrays, {}, CheckpointInfo(7, 100, 1))


def variables(*names: str) -> dict[str, Any]:
    return {name: tf.Variable([0.0, 0.0] if name.endswith("W") else [0.0]) for name in names}


def values(params: dict[str, Any]) -> dict[str, Any]:
    return {name: variable.numpy().tolist() for name, variable in params.items()}


@pytest.mark.parametrize(
    "options, name, loaded_from",
    [
        ({}, "output/rec/input/W", "output/rec/input/W"),
        ({"prefix": "lm_"}, "lm_output/rec/input/W", "output/rec/input/W"),
        ({"prefix": "lm_"}, "output/rec/lm_input/W", "output/rec/input/W"),
        ({"prefix": "lm_"}, "lm_output/rec/lm_input/W", "output/rec/input/W"),
        ({"prefix": "lm/"}, "output/rec/lm/input/W", "output/rec/input/W"),
        ({"prefix": "my/", "var_name_mapping": {"in/W": "output/rec/input/W"}}, "my/in/W", "output/rec/input/W"),
        ({"var_name_mapping": {"in/W": "output/rec/input/W"}}, "in/W", "output/rec/input/W"),
        ({"filename_suffix": ".index"}, "output/rec/out/b", "output/rec/out/b"),
    ],
)
def test_names(other, options, name, loaded_from):
    options = {"filename": other + options.pop("filename_suffix", ""), **options}
    params = variables(name)
    assert preload.load(Config({"preload_from_files": {"x": options}}), params) == {name: 100}
    assert values(params)[name] == STORED[loaded_from]


@pytest.mark.parametrize("name", ["film_output/rec/input/W", "output/rec/input/W"])
def test_a_prefix_stands_in_front_of_a_part_of_the_path(other, name):
    params = variables(name)
    config = Config({"preload_from_files": {"x": {"filename": other, "prefix": "lm_"}}})
    with pytest.raises(ConfigError, match="No parameter has the prefix 'lm_'; the network has for example: " + name):
        preload.load(config, params)


@pytest.mark.parametrize(
    "init, train, fresh, loaded",
    [
        (False, False, False, True),
        (False, True, True, False),
        (True, False, False, False),
        (True, True, True, True),
        (True, True, False, False),
        ("always", True, False, True),
        ("always", True, True, True),
        ("always", False, False, False),
    ],
)
def test_for_which_task(other, init, train, fresh, loaded):
    config = Config({"preload_from_files": {"x": {"filename": other, "init_for_train": init}}})
    params = variables("output/rec/out/b")
    assert preload.load(config, params, train=train, fresh=fresh) == (dict.fromkeys(params, 100) if loaded else {})


@pytest.mark.parametrize("skip", [{"ignore_params": ["own/b"]}, {"ignore_params_prefixes": ["own/"]}])
def test_what_is_not_loaded_keeps_its_value(other, skip):
    params = variables("output/rec/out/b", "own/b")
    config = Config({"preload_from_files": {"x": {"filename": other, **skip}}})
    assert preload.load(config, params) == {"output/rec/out/b": 100}
    assert values(params)["own/b"] == [0.0]


def test_missing(other):
    params = variables("output/rec/out/b", "lm_output/rec/inpt/W", "lm_output/rec/out/b")
    options = {"filename": other, "prefix": "lm_"}
    config = Config({"preload_from_files": {"x": options}})
    with pytest.raises(DataError) as caught:
        preload.load(config, params)
    for part in ("missing: lm_output/rec/inpt/W (stored as output/rec/inpt/W)", "Did you mean 'output/rec/input/W'"):
        assert part in str(caught.value)
    assert values(params)["lm_output/rec/out/b"] == [0.0], "none is changed"
    options["ignore_missing"] = True
    assert preload.load(Config({"preload_from_files": {"x": options}}), params) == {"lm_output/rec/out/b": 100}


def test_other_shape(other):
    config = Config({"preload_from_files": {"x": {"filename": other}}})
    with pytest.raises(DataError, match=r"shape: output/rec/input/W is \[1\] here, stored \[2\]"):
        preload.load(config, {"output/rec/input/W": tf.Variable([0.0])})


@pytest.mark.parametrize(
    "given, message",
    [
        (["x"], "must be a dict"),
        ({"x": "path"}, r"preload_from_files\['x'\]: expected a dict of options"),
        ({"x": {}}, "the option 'filename' is missing"),
        ({"x": {"filename": "lm", "prefx": ""}}, "unknown option 'prefx'. Did you mean 'prefix'"),
        ({"x": {"filename": "lm", "init_for_train": "once"}}, "'init_for_train' is 'once'"),
        ({"x": {"filename": "/nowhere/lm.001"}}, "there is no checkpoint /nowhere/lm.001"),
        ({"x": {"filename": "lm", "checkpoint_format": "torch"}}, "'checkpoint_format' is 'torch'. Known: tf"),
    ],
)
def test_wrong_options(given, message):
    with pytest.raises(ConfigError, match=message):
        preload.load(Config({"preload_from_files": given}), {})


def config_of(folder: Any, **options: Any) -> Config:
    dataset = {"class": "DummyDataset", "input_dim": 2, "output_dim": 3, "num_seqs": 3}
    return Config(
        {
            "extern_data": {"data": {"dim": 2}, "classes": {"dim": 3, "sparse": True}},
            "network": {
                "lm_in": {"class": "linear", "activation": "tanh", "n_out": 2, "from": "data"},
                "output": {"class": "softmax", "from": "lm_in", "target": "classes", "loss": "ce"},
            },
            "train": dataset,
            "dev": dataset,
            "num_epochs": 1,
            "learning_rate": 0.0,
            "model": str(folder / "model" / "net"),
            **options,
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("init", [False, True])
def test_training_and_loading(tmp_path, init):
    path = str(tmp_path / "other")
    save(path, {"in/W": [[1.0, 2.0], [3.0, 4.0]], "in/b": [5.0, 6.0]})
    options = {"other": {"filename": path, "prefix": "lm_", "init_for_train": init}}
    with Engine(config_of(tmp_path, preload_from_files=options)) as engine:
        engine.train()
    trained = checkpoint.read(str(tmp_path / "model" / "net.001"))
    assert (trained["lm_in/b"].tolist() == [5.0, 6.0]) == init, "loaded, and not changed as the learning rate is 0"
    net, choice = load_network(config_of(tmp_path, preload_from_files=options))
    assert choice.epoch == 1 and net.params["lm_in/b"].numpy().tolist() == [5.0, 6.0]
    np.testing.assert_array_equal(net.params["output/W"].numpy(), trained["output/W"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"prefix": "lm_", "ignore_missing": True},
        {"var_name_mapping": {"lm_in/W": "in/W", "lm_in/b": "in/b"}, "ignore_params_prefixes": ["output/"]},
    ],
)
def test_initial_values_of_a_part(tmp_path, options):
    """They count once: a training that goes on needs the file no more."""
    save(str(tmp_path / "other"), {"in/W": [[1.0, 2.0], [3.0, 4.0]], "in/b": [5.0, 6.0]})
    given = {"filename": str(tmp_path / "other"), **options}
    with Engine(config_of(tmp_path, init_params=given)) as engine:
        assert engine.net.params["lm_in/b"].numpy().tolist() == [5.0, 6.0]
        engine.net.params["lm_in/b"].assign([7.0, 8.0])
        engine.train()
    given["filename"] = "no longer there"
    with Engine(config_of(tmp_path, init_params=given, num_epochs=2)) as engine:
        assert engine.net.params["lm_in/b"].numpy().tolist() == [7.0, 8.0]


def test_initial_values_of_the_whole_network_by_a_path(tmp_path):
    values = {"lm_in/W": np.eye(2), "lm_in/b": [1, 2], "output/W": np.ones((2, 3)), "output/b": [1, 2, 3]}
    save(str(tmp_path / "other"), values)
    with Engine(config_of(tmp_path, init_params=str(tmp_path / "other"))) as engine:
        assert engine.net.params["output/b"].numpy().tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ConfigError, match="init_params: there is no checkpoint nowhere"):
        Engine(config_of(tmp_path, init_params="nowhere"))


def config_with_subnetwork(folder: Any, load_on_init: Any) -> Config:
    layers = {"in": {"class": "linear", "activation": "tanh", "n_out": 2, "from": "data"}}
    layers["output"] = {"class": "linear", "activation": None, "n_out": 2, "from": "in"}
    sub = {"class": "subnetwork", "from": "data", "subnetwork": layers, "load_on_init": load_on_init}
    return config_of(
        folder,
        network={
            "sub": sub,
            "output": {"class": "softmax", "from": "sub", "target": "classes", "loss": "ce"},
        },
    )


@pytest.mark.slow
def test_load_on_init(tmp_path):
    path = str(tmp_path / "other")
    save(path, {"in/W": [[1.0, 2.0], [3.0, 4.0]], "in/b": [5.0, 6.0]})
    options = {"filename": path, "ignore_missing": True}
    with Engine(config_with_subnetwork(tmp_path, options)) as engine:
        assert engine.net.params["sub/in/b"].numpy().tolist() == [5.0, 6.0]
        engine.net.params["sub/in/b"].assign([7.0, 8.0])
        engine.train()
    options["filename"] = "no longer there"
    net, _ = load_network(config_with_subnetwork(tmp_path, options))
    assert net.params["sub/in/b"].numpy().tolist() == [7.0, 8.0], "as trained"


def test_load_on_init_of_what_the_checkpoint_lacks(tmp_path):
    values = {"sub/in/W": np.eye(2), "sub/in/b": [1, 2], "output/W": np.zeros((2, 3)), "output/b": [0, 0, 0]}
    save(str(tmp_path / "main"), values)
    save(str(tmp_path / "other"), {"output/W": [[1, 2], [3, 4]], "output/b": [5, 6], "in/W": np.zeros((2, 2))})
    options = {"filename": str(tmp_path / "other"), "ignore_params": ["in/W", "in/b"]}
    config = config_with_subnetwork(tmp_path, options)
    config.set("load", str(tmp_path / "main"))
    net, _ = load_network(config)
    found = {name: variable.numpy().tolist() for name, variable in net.params.items()}
    assert found["sub/output/b"] == [5.0, 6.0] and found["sub/in/b"] == [1.0, 2.0]


def test_load_on_init_names_the_layer(tmp_path):
    save(str(tmp_path / "other"), {"in/W": np.eye(2)})
    with pytest.raises(DataError, match=r"layer 'sub', load_on_init: .*\n  missing: sub/in/b \(stored as in/b\)"):
        Engine(config_with_subnetwork(tmp_path, str(tmp_path / "other")))


@pytest.mark.parametrize(
    "options, stored",
    [
        ({"params_prefix": ""}, "sub/in/b"),
        ({"params_prefix": "sub/in"}, "b"),
        ({"params_prefix": "sub", "load_if_prefix": "in/"}, "b"),
        ({"load_if_prefix": "in/"}, "b"),
        ({}, "in/b"),
    ],
)
@pytest.mark.parametrize("as_function", [False, True])
def test_load_on_init_names(tmp_path, options, stored, as_function):
    """The options map names of the network to those in the checkpoint; a function may return them."""
    save(str(tmp_path / "other"), {stored: [5.0, 6.0]})
    options = {"filename": str(tmp_path / "other"), "ignore_missing": True, **options}
    with Engine(config_with_subnetwork(tmp_path, (lambda: options) if as_function else options)) as engine:
        assert engine.net.params["sub/in/b"].numpy().tolist() == [5.0, 6.0]


@pytest.mark.parametrize(
    "given, message",
    [
        ({"filename": "x", "params_prefix": 1}, "layer 'sub', load_on_init: params_prefix must be text, got 1"),
        ({"filename": "x", "param_prefix": ""}, "layer 'sub', load_on_init: unknown option 'param_prefix'"),
        (lambda: 1 / 0, "layer 'sub', load_on_init: the function failed: ZeroDivisionError"),
        (lambda: 7, "layer 'sub', load_on_init: expected a dict of options, got 7"),
    ],
)
def test_load_on_init_errors(tmp_path, given, message):
    """A wrong option or function is one error that names the layer."""
    with pytest.raises(ConfigError, match=message):
        Engine(config_with_subnetwork(tmp_path, given))

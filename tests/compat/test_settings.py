"""Settings of older configs: each is taken, and says why it has no effect."""

from __future__ import annotations

import os
from typing import Any

import pytest

from returnn_tf.cli.main import main
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError
from returnn_tf.config.settings import check_settings, ignored_settings, setting_by_key
from returnn_tf.tasks.setting_checks import check_all_settings

#: Values in published configs.
IN_CONFIGS: dict[str, list[Any]] = {
    "use_tensorflow": [True],
    "patch_atfork": [True],
    "debug_grad_summaries": [True],
    "need_data": [False],
    "flat_net_construction": [True],
    "debug_print_layer_output_shape": [False],
    "log_grad_norm": [True],
    "multiprocessing": [True],
    "backend": ["tensorflow-net-dict", "tensorflow", os],
    "reinit_network_each_epoch": [True],
    "update_on_device": [True],
    "truncation": [-1],
    "debug_shell_in_runner": [True],
    "debug_save_updater_vars": [True],
    "use_train_proc_manager": [True],
    "watch_memory": [True],
    "web_server_port": [12380],
}


@pytest.mark.parametrize("name", IN_CONFIGS)
def test_settings_of_published_configs(name: str) -> None:
    info = setting_by_key()[name]
    assert info.inert
    for value in IN_CONFIGS[name]:
        check_all_settings(Config({"num_epochs": 1, name: value}))


@pytest.mark.parametrize("name", ["blocks_mt_model", "dataset_pipeline", "use_hot_reloading", "eval_use_train_flag"])
def test_settings_without_a_counterpart(name: str) -> None:
    """Off, they are taken; on, the error says what to do."""
    info = setting_by_key()[name]
    check_all_settings(Config({name: info.default}))
    with pytest.raises(ConfigError, match="%r is not supported: %s" % (name, info.unsupported)):
        check_all_settings(Config({name: True}))


@pytest.mark.parametrize("name", ["get_model", "train_step", "forward_step"])
def test_models_in_code(name: str) -> None:
    """``backend = "tensorflow"`` means code today, and a network dict in older configs."""
    with pytest.raises(ConfigError, match="'%s' .*is code for another backend: .* Only networks that are dicts" % name):
        plan_from_config(Config({"backend": "tensorflow", name: lambda **_: None}))
    network = {"output": {"class": "copy", "from": "data"}}
    plan_from_config(Config({"network": network, "num_inputs": 2, "behavior_version": 21, name: lambda **_: None}))


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for one, it tells that it has no effect."""
    assert main(["settings", "patch_atfork"]) == 0
    assert "; no effect: " in " ".join(capsys.readouterr().out.split())


def test_without_effect() -> None:
    """Only what is set to another value than the default is reported."""
    config = Config({"need_data": False, "use_tensorflow": True, "flat_net_construction": True, "start_batch": "auto"})
    assert ignored_settings(config) == [
        "flat_net_construction (networks of any depth are planned)",
        "need_data (a dataset is opened only when a task reads it)",
    ]
    older = Config({"multiprocessing": True, "update_on_device": True, "truncation": -1, "patch_atfork": True})
    assert [text.split(" (")[0] for text in ignored_settings(older)] == [
        "multiprocessing",
        "update_on_device",
        "patch_atfork",
    ]
    with pytest.raises(ConfigError, match="'truncation' must be -1: gradients go through whole sequences; cut"):
        check_settings(Config({"truncation": 20}))
    with pytest.raises(ConfigError, match="'use_tensorflow' must be True"):
        check_settings(Config({"use_tensorflow": False}))

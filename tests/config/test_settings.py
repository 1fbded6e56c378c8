"""Settings: declared once and read by the declaration, checked at once, misspelt, unsupported and without effect."""

import ast
import functools
import glob
import os
from collections.abc import Iterator
from typing import Optional

import numpy as np
import pytest

from returnn_tf.cli.main import main
from returnn_tf.config import Config, ConfigError
from returnn_tf.config.options import at_least, file_name
from returnn_tf.config.settings import (
    SettingGroup,
    all_settings,
    check_settings,
    misspelt,
    setting,
    setting_by_key,
    setting_groups,
)
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.config.settings.docs import describe_setting
from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.update.optimizers import optimizers_by_switch
from returnn_tf.tasks.setting_checks import check_all_settings
from tests.run_tasks import run_task

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BY_NAME = {"value", "describe_source", "is_set", "is_given"}  # methods of a group
GROUP_NAMES = {group.__name__ for group in setting_groups()}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Return path and syntax tree of all modules but those which define settings and readers."""
    for path in sorted(glob.glob(os.path.join(ROOT, "returnn_tf", "**", "*.py"), recursive=True)):
        name = os.path.relpath(path, os.path.join(ROOT, "returnn_tf"))
        if not name.startswith(os.path.join("config", "")) or name == os.path.join("config", "epoch_value.py"):
            with open(path, encoding="utf8") as f:
                yield name, ast.parse(f.read(), path)


def group_of(node: ast.AST) -> Optional[str]:
    """Return the name of the group that an expression ``TrainingSettings(...)`` makes."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in GROUP_NAMES:
        return node.func.id
    return None


def variables(tree: ast.Module) -> dict[str, set[str]]:
    """Return the groups that each variable of a module may be: ``settings = TrainingSettings(config)``, or declared."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and isinstance(node.annotation, ast.Name) and node.annotation.id in GROUP_NAMES:
            found.setdefault(node.arg, set()).add(node.annotation.id)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts))
                for name, value in pairs:
                    group = group_of(value)
                    if isinstance(name, ast.Name) and group:
                        found.setdefault(name.id, set()).add(group)
    return found


def reads(tree: ast.Module) -> tuple[list[str], list[str]]:
    """Return the attributes read of groups, and all strings of the module if it reads some by name."""
    groups = variables(tree)
    attributes, by_name = [], False
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            on_variable = isinstance(node.value, ast.Name) and node.value.id in groups
            if on_variable or group_of(node.value):
                by_name |= node.attr == "value"
                attributes.append(node.attr)
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return attributes, strings if by_name else []


@functools.cache
def all_reads() -> dict[str, tuple[list[str], list[str]]]:
    """Return the reads of each module."""
    return {name: reads(tree) for name, tree in modules()}


def test_each_setting_is_read() -> None:
    """What is declared is read somewhere, unless the declaration says that it is not."""
    read = {name for attributes, strings in all_reads().values() for name in attributes + strings}
    read |= {name for name, info in all_settings().items() if info.dataset_option or info.batch_option}
    read |= set(optimizers_by_switch())
    without = {name for name, info in all_settings().items() if info.unsupported or info.inert}
    assert sorted(set(all_settings()) - without - read) == []
    assert sorted(without & {name for attributes, _ in all_reads().values() for name in attributes}) == []


def test_what_is_read_is_declared() -> None:
    """No attribute of a group is read that it does not declare."""
    known = set(all_settings()) | BY_NAME | {"declared", "config"}
    assert not {
        (path, name) for path, (attributes, _) in all_reads().items() for name in attributes if name not in known
    }


@pytest.mark.parametrize("info", list(all_settings().values()), ids=lambda info: info.name)
def test_declarations(info) -> None:
    """The default is a possible value, and the help is one line."""
    assert info.default is None or info.fault(info.default) is None
    assert info.help and "\n" not in info.help and not info.help.endswith(".")
    assert not (info.unsupported and info.inert)
    assert describe_setting(info.name).startswith("setting %r" % info.name)


class Example(SettingGroup):
    """For tests."""

    count: int = setting(3, help="a number", check=at_least(1), aliases=["number"])
    rates: list[float] = setting([], help="numbers")
    name: str = setting("", help="of a file", check=file_name)
    mode: str = setting("a", help="a choice", choices=["a", "b"])
    limit: "Optional[int]" = setting(None, help="a limit")
    flag: bool = setting(False, help="on or off")
    gone: bool = setting(False, help="no more", unsupported="write count instead")
    anything: object = setting(None, help="a dict or list")


@pytest.mark.parametrize(
    "value, text, name, expected",
    [
        (5, "5", "count", 5),
        (None, "4", "count", 4),
        ([0.1, 2], "0.1,2", "rates", [0.1, 2]),
        ("b", "b", "mode", "b"),
        ("", "", "mode", "a"),
        (None, "7", "limit", 7),
        (1, "true", "flag", True),
        (0, "no", "flag", False),
        (False, "False", "gone", False),
        ({"a": 1}, "{'a': 1}", "anything", {"a": 1}),
    ],
)
def test_values(value, text, name, expected) -> None:
    """Python values and text give the same."""
    config = Config({name: value})
    assert Example(config).value(name) == (expected if value is not None else Example.declared()[name].default)
    assert getattr(Example(Config.from_files([], [(name, text)])), name) == expected


@pytest.mark.parametrize(
    "name, given, expected",
    [
        ("count", np.int64(5), 5),
        ("flag", np.bool_(True), True),
        ("flag", np.int32(1), True),
        ("limit", np.int64(7), 7),
        ("rates", [np.float32(0.5), np.int64(2)], [0.5, 2]),
        ("anything", (np.int64(1), {}), (1, {})),
    ],
)
def test_numbers_of_numpy(name, given, expected) -> None:
    """They count as numbers of Python, which is what readers get."""
    value = Example(Config({name: given})).value(name)
    assert value == expected and repr(value) == repr(expected)


@pytest.mark.parametrize("given", [np.int64(0), np.float32(2.5)])
def test_wrong_numbers_of_numpy(given) -> None:
    with pytest.raises(ConfigError, match="config key 'count'.* got %s" % given):
        Example(Config({"count": given})).value("count")


@pytest.mark.parametrize(
    "values, expected",
    [
        ({"name": "a\udcffb/m"}, "'name' must be a name that can be written in UTF-8, without NUL"),
        ({"name": "a\0b"}, "'name' must be a name that can be written in UTF-8, without NUL"),
        ({"count": 0}, "config key 'count' must be at least 1, got 0. It is: a number"),
        ({"count": 2.5}, "config key 'count': expected a whole number, got 2.5"),
        ({"number": 0}, "config key 'number' must be at least 1"),
        ({"mode": "c"}, "config key 'mode' is 'c'. Known: a, b."),
        ({"mode": {}}, "config key 'mode': expected a string, got {} (a dict)"),
        ({"rates": ["x"]}, "config key 'rates': expected a list of numbers, got 'x' (a string) in it"),
        ({"gone": True}, "config key 'gone' is not supported: write count instead"),
    ],
)
def test_wrong_values(values, expected) -> None:
    """Each error names the key, what is expected and what is there."""
    with pytest.raises(ConfigError) as info:
        for name in Example.declared():
            Example(Config(values)).value(name)
    assert expected in str(info.value)


def test_defaults_aliases_and_places() -> None:
    """A default that is a list is a new one each time; an older name counts if the newer one is not set."""
    group = Example(Config({"number": 7}))
    group.rates.append(1.0)
    assert group.rates == [] and group.count == 7 and not group.is_set("flag")
    assert group.describe_source("count") == "config key 'number'" and group.is_set("count")
    assert Example(Config({"number": 7, "count": 2})).count == 2


def test_all_faults_at_once(tmp_path) -> None:
    """One error before a task begins, with the place of each."""
    path = tmp_path / "my.config"
    path.write_text("num_epochs = 'many'\nlearning_rate = -1\noptimize_move_layers_out = False\nmine = 3\n")
    config = Config.from_file(str(path))
    with pytest.raises(ConfigError) as info:
        check_settings(config)
    assert str(info.value).split("\n") == [
        "config key 'optimize_move_layers_out' (%s:3) is not supported: set 'optimize_move_layers_out': False in the "
        "rec layers that need it" % path,
        "config key 'num_epochs' (%s:1): expected a whole number, got 'many' (a string)" % path,
        "config key 'learning_rate' (%s:2) must be at least 0, got -1. It is: learning rate of the first epoch" % path,
    ]
    check_settings(config, ["mine"])


def test_a_name_of_configs_counts_only_on_the_command_line() -> None:
    """Many configs have a helper ``beam_size`` of any type."""
    assert NetworkSettings(Config({"beam_size": "twelve"})).beam_size is None
    check_settings(Config({"beam_size": {}}))
    assert NetworkSettings(Config.from_files([], [("beam_size", "4")])).beam_size == 4
    with pytest.raises(ConfigError, match=r"\(the command line\) must be at least 1"):
        check_settings(Config.from_files([], [("beam_size", "0")]))


@pytest.mark.parametrize("value, ok", [(0, True), (2**31 - 1, True), (-1, False), (2**31, False), (1.5, False)])
def test_random_seed(value, ok) -> None:
    """0 is a seed like any other."""
    config = Config({"random_seed": value})
    if ok:
        assert TrainingSettings(config).random_seed == value
    else:
        with pytest.raises(ConfigError, match="random_seed"):
            check_settings(config)


def test_some_readings() -> None:
    """Settings with types of their own."""
    config = Config.from_files([], [("start_epoch", "3"), ("learning_rate_decay", "0.9"), ("log_verbosity", "3,5")])
    assert TrainingSettings(config).start_epoch == 3 and LoggingSettings(config).log_verbosity == [3, 5]
    assert LearningRateSettings(config).learning_rate_decay == 0.9
    halved = LearningRateSettings(Config({"newbob_learning_rate_decay": lambda rate: rate / 2})).learning_rate_decay
    assert callable(halved) and halved(1.0) == 0.5
    assert TaskSettings(Config({"device": None})).device == "all"
    assert DataSettings(Config({"batch_size": {"data": 100, "classes": None}})).batch_size == {
        "data": 100,
        "classes": None,
    }
    assert not LoggingSettings(Config()).is_given("tf_log_dir") and LoggingSettings(
        Config({"tf_log_dir": None})
    ).is_given("tf_log_dir")


# Settings of published configs, with values as they have them.
IN_CONFIGS = {
    "log_verbosity": [5, 3, [3, 5]],
    "batch_size": [10000, {"classes": 500, "data": 20000}],
    "learning_rate_control": ["newbob_multi_epoch", "newbob_rel", "newbob_abs", "constant", "newbob"],
    "num_epochs": [150, 0],
    "task": ["train", "search", "eval", "forward", "config:dump"],
    "device": ["gpu", "cpu", None],
    "gradient_noise": [0.0, 0.3],
    "batching": ["random", "sort_bin_shuffle:.64", "laplace:.1000"],
    "learning_rate": [0.001, 1],
    "newbob_multi_update_interval": [1, 3],
    "cleanup_old_models": [True, False, {"keep": [60, 80]}, {"keep_last_n": 3, "keep_best_n": 5, "keep": [1]}],
    "train": [{"class": "HDFDataset", "files": ["a.hdf"]}],
    "learning_rate_control_relative_error_relative_lr": [True, False],
    "learning_rate_file": ["newbob.data", None],
    "model": ["net-model/network"],
    "newbob_multi_num_epochs": [6, 20],
    "dev": [{"class": "HDFDataset", "files": ["a.hdf"]}],
    "cache_size": ["0", 0, "4G"],
    "network": [{"output": {"class": "softmax"}}],
    "window": [1],
    "max_seqs": [200],
    "gradient_clip": [0, 1, 0.0],
    "log": [["./log"], "log/crnn.log", []],
    "learning_rate_control_min_num_epochs_per_new_lr": [3],
    "tf_log_memory_usage": [True],
    "newbob_learning_rate_decay": [0.7, 0.9],
    "optimizer_epsilon": [1e-8, 1.0],
    "target": ["bpe", "classes"],
    "log_batch_size": [True],
    "num_outputs": [9001, {"bpe": (1030, 1), "data": (40, 2)}],
    "adam": [True],
    "search_output_layer": ["decision", ["output", "decision"]],
    "max_seq_length": [{"bpe": 75}, 600, 0, float("inf"), -75],
    "num_inputs": [40],
    "use_learning_rate_control_always": [True],
    "pretrain": ["default", {"repetitions": 5, "construction_algo": "from_input"}, True],
    "learning_rates": [[0.0003, 0.0004], {1: 0.1}, ()],
    "sprint_interface_dataset_opts": [{"input_stddev": 3.0}],
    "min_learning_rate": [2e-5],
    "accum_grad_multiple_step": [2],
    "learning_rate_control_error_measure": ["dev_score_output:exp", ["dev_error_output"]],
    "chunking": ["0", "50:25", "64:32", ({"data": 50}, {"data": 25})],
    "stop_on_nonfinite_train_score": [False, True],
    "extern_data": [{"data": {"dim": 40}}],
    "preload_from_files": [{}, {"lm": {"filename": "net", "prefix": "lm_"}}],
    "nadam": [True],
    "eval_datasets": [{"devtrain": {"class": "HDFDataset", "files": ["a.hdf"]}}],
    "save_interval": [1, 10],
    "eval": [None],
    "gradient_clip_global_norm": [1.0, 5],
    "start_batch": ["auto"],
    "start_epoch": ["auto", 1],
    "newbob_relative_error_threshold": [0, -0.007],
    "random_seed": [1],
    "calculate_exp_loss": [True],
    "tf_session_opts": [{"gpu_options": {"per_process_gpu_memory_fraction": 0.92}}, {"allow_soft_placement": True}],
    "import_model_train_epoch1": ["net/network.010"],
    "newbob_relative_error_div_by_old": [True],
    "store_metadata_mod_step": [None, 100],
    "debug_add_check_numerics_ops": [False],
    "optimizer": [{"class": "adam", "epsilon": 1e-8}, {"class": "nadam"}],
    "momentum": [0.9, 0.99],
    "pretrain_construction_algo": ["from_input"],
    "pretrain_repetitions": [{"default": 0, "final": 6}, 3],
    "pretrain_copy_output_layer": [True, "ifpossible"],
    "pretrain_greedy": [True],
    "context_window": [337, 1],
    "get_network": [lambda epoch, **_: {}],
    "load": ["net/network.010"],
    "load_epoch": [12],
    "search_data": ["dev", "config:get_dataset('dev')", {"class": "HDFDataset", "files": ["a.hdf"]}],
    "forward_override_hdf_output": [True],
    "search_do_eval": [0, False],
    "search_output_file": ["out.py"],
    "search_output_file_format": ["py"],
    "horovod_dataset_distribution": ["random_seed_offset", "shard"],
    "horovod_param_sync_time_diff": [100.0],
    "horovod_reduce_type": ["param"],
    "use_horovod": [False],
    "dynamic_learning_rate": [{"interval": 3, "decay": 0.9}, lambda **_: 0.1],
    "horovod_scale_lr": [True],
    "save_epoch1_initial_model": [True],
    "tf_log_dir": ["tf_log_dir", None],
    "debug_print_layer_output_template": [True],
    "debug_add_check_numerics_on_output": [True],
    "optimize_move_layers_out": [True],
    "use_last_best_model": [True, {"modulo": 5, "only_last_n": 10, "min_score_dist": 0.1}, {"only_last_epochs": 3}],
    "reset_updater_vars_mod_step": [1000],
    "seq_drop_freq": [5],
    "forward_use_search": [True],
    "allow_random_model_init": [True],
    "rmsprop": [0.9, True],
}


@pytest.mark.parametrize("name", IN_CONFIGS)
def test_settings_of_published_configs(name) -> None:
    """Each is a setting which some code reads, or which says why it has no effect; its values are taken."""
    info = setting_by_key()[name]
    assert info.inert or not info.unsupported or IN_CONFIGS[name] == [info.default]
    for value in IN_CONFIGS[name]:
        check_all_settings(
            Config({"num_epochs": 1, name: value, **({"pretrain": True} if "pretrain_" in name else {})})
        )


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"loss_spike": {"factr": 3}}, "config key 'loss_spike': unknown option 'factr'. Did you mean 'factor'?"),
        ({"weight_average": {"decay": 1.5}}, "'weight_average': option 'decay' must be between 0 and 1, got 1.5"),
        ({"loss_spike": 3}, "config key 'loss_spike': expected True or a dict"),
        ({"profile": {"step": 3}}, "config key 'profile': unknown option 'step'. Did you mean 'steps'?"),
        ({"use_last_best_model": {"modulo": 0}}, "option 'modulo' must be at least 1, got 0"),
        (
            {"use_last_best_model": 3.5},
            "config key 'use_last_best_model' must be True, False, a dict or None, got 3.5",
        ),
        ({"use_last_best_model": {"only_last_epoch": 3}}, "Did you mean 'only_last_epochs'?"),
        ({"use_last_best_model": {"only_last_n": 3, "only_last_epochs": 3}}, "is an older name of only_last_n"),
        ({"cleanup_old_models": {"keep_last": 3}}, "Did you mean 'keep_last_n'?"),
        ({"preload_from_files": {"lm": {"file": "x"}}}, "unknown option 'file'. Did you mean 'filename'?"),
        ({"dynamic_learning_rate": {"interval": 0.5, "decay": 1}}, "option 'interval' must be at least 1, got 0.5"),
        ({"learning_rate_control": "newbop"}, "Did you mean 'newbob'?"),
        ({"learning_rate_control": "newbob_multi"}, "Did you mean 'newbob_multi_epoch'?"),
        ({"learning_rate": [0.1]}, "got the list [0.1]. Write learning_rates = [0.1]"),
        ({"learning_rate": (0, 5)}, "expected one number, got (0, 5). The decimal point is '.', as in 0.5; several"),
        ({"learning_rates": {"first": 1}}, "expected a list of rates or a dict epoch -> rate"),
        ({"optimizer": {"class": "adm"}}, "Did you mean 'adam'?"),
        ({"pretrain": {"repetition": 3}}, "Did you mean 'repetitions'?"),
        ({"forward_callback": {"a": 1}}, "must be an object with the methods init, process_seq and finish"),
        ({"seq_drop_freq": 0}, "'seq_drop_freq' must be at least 1, got 0"),
    ],
)
def test_options_in_dicts_are_checked_before_a_task(settings, message) -> None:
    with pytest.raises(ConfigError) as info:
        check_all_settings(Config(settings))
    assert message in str(info.value)
    with pytest.raises(ConfigError):
        run_task(Config({**settings, "task": "nop"}))


ANYTHING = [
    *(None, True, 0, 1, -1, 2**40, 0.5, float("nan"), "", "x", "{", b"x", (), [], {}, [None], [[1]], (1, "a")),
    *({1: 2}, {None: None}, {(1, 2): 3}, {"class": None}, {"x": {"filename": 3}}, {"keep": ["a"]}, {1}, range(3)),
    *(3j, Ellipsis, object(), int, os, lambda: 3),
]


@pytest.mark.parametrize("name", setting_by_key())
def test_any_value_is_taken_or_explained(name, capsys) -> None:
    """Nothing but an error which names the setting, or a part of it."""
    base = {"network": {"output": {"class": "softmax", "loss": "ce", "from": "data"}}, "num_epochs": 2}
    for value in ANYTHING:
        config = Config({**base, name: value})
        try:
            check_all_settings(config)
        except ConfigError as exc:
            assert name in str(exc) or "optimizer" in str(exc) or "pretrain" in str(exc), (value, str(exc))


def test_mistakes_in_several_dicts_are_told_together() -> None:
    with pytest.raises(ConfigError) as info:
        check_all_settings(Config({"loss_spike": 3, "profile": "x"}))
    assert [line.split(":")[0] for line in str(info.value).split("\n")] == [
        "config key 'loss_spike'",
        "config key 'profile'",
    ]


@pytest.mark.parametrize("name", ["num_epoch", "newbob_lerning_rate_decay", "batchsize"])
def test_misspelt(name) -> None:
    """Older names are known, too."""
    assert misspelt(name) in setting_by_key()
    assert misspelt("epochs") == "num_epochs"
    assert all(misspelt(key) is None for key in setting_by_key())


def test_command(capsys) -> None:
    """The list by topic, and what there is to know about one setting."""
    assert main(["settings"]) == 0
    listed = capsys.readouterr().out
    assert "Learning rate:" in listed and "(not supported) " in listed
    assert all("  %s " % name in listed for name in all_settings())
    assert main(["settings", "batching", "newbob_learning_rate_decay", "start_batch"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "batching: Any = None" in shown and "do not set their option 'seq_ordering' inherit it" in shown
    assert "also called 'newbob_learning_rate_decay'" in shown and "start_batch" in shown
    assert main(["settings", "num_epoch"]) == 2
    assert "Did you mean 'num_epochs'?" in capsys.readouterr().err

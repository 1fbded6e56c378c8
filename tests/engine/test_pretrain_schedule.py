"""Which network is trained in which epoch. No TensorFlow."""

from __future__ import annotations

from typing import Any, Optional

import pytest

from returnn_tf.config import Config, ConfigError, WrapEpochValue
from returnn_tf.config.derived import derived, overridden
from returnn_tf.engine.learning_rate.control import LearningRateControl
from returnn_tf.engine.pretrain.options import epochs_of_steps
from returnn_tf.engine.pretrain.schedule import NetworkSchedule, rate_of_epoch
from returnn_tf.logging.log import log
from returnn_tf.tensor import Dim

Net = dict[str, Any]


def layer(*sources: str, **options: Any) -> Net:
    return {"class": "linear", "n_out": 4, "from": list(sources), **options}


def chain() -> Net:
    return {
        "h1": layer("data"),
        "h2": layer("h1"),
        "h3": layer("h2"),
        "output": layer("h3", **{"class": "softmax", "loss": "ce"}),
    }


def bidirectional() -> Net:
    """Return two layers of two directions, with a helper which an option names."""
    result: Net = {"output": layer("fw1", "bw1", loss="ce"), "side": layer("data", is_output_layer=True)}
    for i, below in enumerate((["data"], ["fw0", "bw0"])):
        for direction in ("fw", "bw"):
            result["%s%d" % (direction, i)] = layer(*below, initial_state="init" if i else None)
    result["init"] = layer("data")
    return result


def schedule_of(network: Optional[Net] = None, **settings: Any) -> NetworkSchedule:
    return NetworkSchedule(Config({"network": chain() if network is None else network, **settings}))


def names(schedule: NetworkSchedule, epochs: int) -> list[str]:
    return ["+".join(sorted(schedule.at(epoch).layers)) for epoch in range(1, epochs + 1)]


@pytest.mark.parametrize("algo", ["from_input", "from_output"])
def test_a_chain_grows_from_the_input(algo: str) -> None:
    schedule = schedule_of(pretrain="default", pretrain_construction_algo=algo)
    assert schedule.pretrain_epochs == 3
    assert names(schedule, 4) == ["h1+output", "h1+h2+output"] + ["h1+h2+h3+output"] * 2
    assert schedule.at(1).layers["output"]["from"] == ["h1"] and schedule.at(2).layers["output"]["from"] == ["h2"]
    assert [schedule.at(epoch).pretrain for epoch in (1, 3, 4)] == [True, True, False]
    assert schedule.at(3).layers == chain()


@pytest.mark.parametrize("algo", ["from_input", "from_output"])
def test_branches_and_helpers(algo: str) -> None:
    schedule = schedule_of(bidirectional(), pretrain={"construction_algo": algo})
    assert names(schedule, 2) == ["bw0+fw0+output+side", "+".join(sorted(bidirectional()))]
    assert schedule.at(1).layers["output"]["from"] == ["fw0", "bw0"]


def test_the_algorithms_differ_where_branches_have_different_lengths() -> None:
    network = {"a": layer("data"), "b": layer("a"), "c": layer("data"), "output": layer("b", "c", loss="ce")}
    for algo in ("from_input", "from_output"):
        schedule = schedule_of(network, pretrain={"construction_algo": algo})
        assert schedule.at(1).layers["output"]["from"] == ["a", "c"], algo
    network["c"]["from"] = ["a"]
    network["d"], network["output"]["from"] = layer("c"), ["b", "d"]
    assert names(schedule_of(network, pretrain={"construction_algo": "from_input"}), 2) == ["a+output", "a+b+c+output"]
    assert names(schedule_of(network, pretrain={"construction_algo": "from_output"}), 2) == ["a+output", "a+c+output"]


@pytest.mark.parametrize(
    "repetitions, expected",
    [
        (None, [1, 1, 1]),
        (2, [2, 2, 2]),
        ([3, 1], [3, 1, 1]),
        ((1, 2, 3), [1, 2, 3]),
        ({"default": 0, "final": 6}, [0, 0, 6]),
        ({"default": 2, 0: 3}, [3, 2, 2]),
        ({"final": 4, 1: 0}, [1, 0, 4]),
    ],
)
def test_repetitions(repetitions: Any, expected: list[int]) -> None:
    assert epochs_of_steps(repetitions, [None] * 3, "here") == expected
    schedule = schedule_of(pretrain={"repetitions": repetitions})
    assert schedule.pretrain_epochs == sum(expected)
    steps = [int(schedule.at(e).name.split()[-1]) for e in range(1, sum(expected) + 1)]
    assert steps == [step for step, count in enumerate(expected) for _ in range(count)]


def grown_to(size: int, **special: Any) -> Any:
    """A construction function for networks of one layer with 1, 2, ..., size units; then follows the config's, of 9."""

    def construct(idx: int, net: Net) -> Optional[Net]:
        net["output"]["n_out"] = idx + 1
        return {**net, **{"#" + key: value for key, value in special.get("step%d" % idx, {}).items()}}

    return lambda idx, net: construct(idx, net) if idx < size else None


@pytest.mark.parametrize(
    "pretrain, expected",
    [
        # without options each step takes an epoch, and so does the network of the config
        ({"construction_algo": grown_to(3)}, [1, 2, 3, 9]),
        ({"construction_algo": grown_to(3), "repetitions": 2}, [1, 1, 2, 2, 3, 3, 9, 9]),
        # a list may have an entry for the network of the config
        ({"construction_algo": grown_to(3), "repetitions": [2, 1]}, [1, 1, 2, 3, 9]),
        ({"construction_algo": grown_to(3), "repetitions": [1, 1, 1, 3]}, [1, 2, 3, 9, 9, 9]),
        ({"construction_algo": grown_to(2), "repetitions": [2, 0]}, [1, 1]),
        # "final" is the network of the config, also if its number is given
        ({"construction_algo": grown_to(2), "repetitions": {"final": 3}}, [1, 2, 9, 9, 9]),
        ({"construction_algo": grown_to(2), "repetitions": {"default": 0, "final": 2}}, [9, 9]),
        ({"construction_algo": grown_to(2), "repetitions": {"default": 2, 0: 1, 2: 3}}, [1, 2, 2, 9, 9, 9]),
        ({"construction_algo": grown_to(2), "repetitions": {"default": 2, "final": 0}}, [1, 1, 2, 2]),
        # "#repetition" wins over all of these
        ({"construction_algo": grown_to(2, step0={"repetition": 3}), "repetitions": 2}, [1, 1, 1, 2, 2, 9, 9]),
        ({"construction_algo": grown_to(2, step1={"repetition": 0}), "repetitions": [1, 5, 1]}, [1, 9]),
        ({"construction_algo": grown_to(2, step0={"repetition": 2}), "repetitions": {0: 7}}, [1, 1, 2, 9]),
        # 7 steps of 5 epochs, of which the first has 10, and the network of the config
        (
            {"construction_algo": grown_to(7, step0={"repetition": 10}), "repetitions": 5},
            [1] * 10 + [n for n in range(2, 8) for _ in range(5)] + [9] * 5,
        ),
        # nothing but the network of the config
        ({"construction_algo": lambda idx, net: None, "repetitions": 2}, [9, 9]),
        ({"construction_algo": "no_network_modifications"}, [9]),
        ({"construction_algo": "no_network_modifications", "repetitions": {"final": 3}}, [9, 9, 9]),
        ({"construction_algo": [], "repetitions": 2}, [9, 9]),
    ],
)
def test_how_many_epochs_train_which_network(pretrain: Net, expected: list[int]) -> None:
    schedule = schedule_of({"output": layer("data", n_out=9, loss="ce")}, pretrain=pretrain)
    assert schedule.pretrain_epochs == len(expected)
    entries = [schedule.at(epoch) for epoch in range(1, len(expected) + 3)]
    assert [entry.layers["output"]["n_out"] for entry in entries] == [*expected, 9, 9]
    assert [entry.pretrain for entry in entries] == [True] * len(expected) + [False] * 2


def test_a_repetition_in_the_network_of_the_config() -> None:
    network = {"output": layer("data", n_out=9, loss="ce"), "#repetition": 3}
    assert schedule_of(network, pretrain={"construction_algo": "no_network_modifications"}).pretrain_epochs == 3
    # its copies have it, too, unless the function takes it out
    assert schedule_of(network, pretrain={"construction_algo": grown_to(2)}).pretrain_epochs == 9
    assert (
        schedule_of(network, pretrain={"construction_algo": grown_to(2, step1={"repetition": 1})}).pretrain_epochs == 7
    )


def test_older_keys_are_defaults_of_the_dict() -> None:
    network = {"output": layer("data", n_out=9, loss="ce")}
    older = {"pretrain_repetitions": 2, "pretrain_construction_algo": grown_to(2), "pretrain_greedy": True}
    assert schedule_of(network, pretrain="default", **older).pretrain_epochs == 6
    assert schedule_of(network, pretrain={"repetitions": 1}, **older).pretrain_epochs == 3
    assert schedule_of(network, **older).pretrain_epochs == 0


def test_only_layers_below_the_output_layers_are_left_out() -> None:
    """A further layer with a loss keeps what it needs; a layer below the input layers stays, too."""
    network = chain()
    network["side"] = layer("h2", loss="ce")
    steps = [schedule_of(network, pretrain="default").at(epoch) for epoch in (1, 2, 3)]
    assert [step.layers["output"]["from"] for step in steps] == [["h1"], ["h2"], ["h3"]]
    assert ["h3" in step.layers for step in steps] == [False, False, True]
    assert all(step.layers["side"]["from"] == ["h2"] for step in steps)
    outputs = {"output_layers": ["output", "side"]}
    steps = [schedule_of(network, pretrain=outputs).at(epoch) for epoch in (1, 2)]
    assert [step.layers["side"]["from"] for step in steps] == [["h1"], ["h1"]]
    network["source"] = {"class": "eval", "from": "data", "eval": "source(0)"}
    network["h1"]["from"] = ["source"]
    for algo in ("from_output", "from_input"):
        for inputs, expected in ((["source"], 3), (("data",), 4), ("source", 3)):
            options = {"construction_algo": algo, "input_layers": inputs}
            schedule = schedule_of({**network, "side": layer("h1", loss="ce")}, pretrain=options)
            assert schedule.pretrain_epochs == expected, (algo, inputs)
            first = schedule.at(1).layers
            assert first["output"]["from"] == (["h1"] if expected == 3 else ["source"]) and "source" in first


@pytest.mark.parametrize(
    "options, step, output, hidden",
    [
        ({}, {}, "ifpossible", None),
        ({"copy_param_mode": "subset"}, {}, "subset", "subset"),
        ({"copy_param_mode": "subset"}, {"#copy_param_mode": "reset"}, "reset", "reset"),
        ({"copy_param_mode": "subset"}, {"#copy_param_mode": None}, "ifpossible", None),
        ({"copy_param_mode": "subset", "copy_output_layer": "ifpossible"}, {}, "ifpossible", "subset"),
        ({"copy_param_mode": "subset", "copy_output_layer": True}, {}, "subset", "subset"),
        ({"copy_param_mode": "subset", "copy_output_layer": False}, {}, "reset", "subset"),
        ({"copy_param_mode": "reset", "copy_output_layer": True}, {}, "reset", "reset"),
        ({"copy_output_layer": "subset"}, {}, "subset", None),
        ({"copy_output_layer": False, "output_layers": ["h3"]}, {}, None, None),
    ],
)
def test_copy_modes(options: Net, step: Net, output: Optional[str], hidden: Optional[str]) -> None:
    schedule = schedule_of(pretrain={"construction_algo": [{**chain(), **step}], **options})
    entry = schedule.at(1)
    assert (entry.mode_of("output"), entry.mode_of("h1"), entry.mode_of("h1/output")) == (output, hidden, hidden)
    assert entry.mode_of("output/rec") == output
    assert entry.mode_of("h3") == ("reset" if "output_layers" in options else hidden)


def test_special_keys_without_effect_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    def get_network(epoch: int) -> Net:
        return {**chain(), "#repetition": 3, "#finish_all_data": epoch > 2, "#trainable": epoch != 2}

    schedule = NetworkSchedule(Config({"get_network": get_network}))
    assert [schedule.at(epoch).trainable for epoch in (1, 2, 3)] == [True, False, True]
    assert len(schedule.distinct(1, 3)) == 3 and "#trainable" not in schedule.at(1).layers
    out = capsys.readouterr().out
    assert out.count("'#repetition' has no effect: ") == 1 and out.count("'#finish_all_data' has no effect: ") == 1


def test_a_construction_function_gets_its_own_copy() -> None:
    dim, network = Dim(size=4), chain()
    network["h1"]["out_dim"] = dim
    asked = []

    def construct(idx: int, net: Net) -> Optional[Net]:
        asked.append(idx)
        assert net["h1"]["n_out"] == 4 and net["h1"]["out_dim"] is dim
        net["h1"]["n_out"] = 10 + idx
        return net if idx < 2 else None

    schedule = schedule_of(network, pretrain={"repetitions": 2, "construction_algo": construct})
    assert asked == [0, 1, 2] and network["h1"]["n_out"] == 4 and schedule.pretrain_epochs == 6
    assert [schedule.at(epoch).layers["h1"]["n_out"] for epoch in range(1, 7)] == [10, 10, 11, 11, 4, 4]


def test_a_list_of_networks() -> None:
    schedule = schedule_of(pretrain={"construction_algo": [{"output": layer("data")}, chain()]})
    assert names(schedule, 3) == ["output"] + ["h1+h2+h3+output"] * 2


def test_greedy_steps_train_only_what_is_new() -> None:
    schedule = schedule_of(pretrain={"greedy": True, "repetitions": 1})
    step = schedule.at(2)
    assert step.layers["h1"].get("trainable") is False
    assert all("trainable" not in step.layers[name] for name in ("h2", "output"))
    assert step.mode_of("output") == "ifpossible" and step.mode_of("h1") is None
    assert "trainable" not in schedule.at(4).layers["h1"]


@pytest.mark.parametrize(
    "pretrain, message",
    [
        ("defualt", 'expected "default" or a dict'),
        ({"repetition": 3}, "unknown option 'repetition'. Did you mean 'repetitions'?"),
        ({"construction_algo": "from_top"}, "from_output, from_input, no_network_modifications; got 'from_top'"),
        ({"copy_param_mode": "some"}, "option 'copy_param_mode' is 'some'. Known: None, ifpossible, subset, reset"),
        ({"copy_output_layer": "yes"}, "option 'copy_output_layer' is 'yes'"),
        ({"repetitions": -1}, "a number of epochs >= 0, not -1"),
        ({"repetitions": 0.5}, "option 'repetitions' must be a whole number, a list, a dict or None, got 0.5"),
        ({"repetitions": [1, 2, 3, 4]}, "4 entries, but there are 3 steps, the network of the config included"),
        ({"repetitions": []}, "0 entries, but there are 3 steps"),
        ({"repetitions": {"finally": 1}}, "the key 'finally', but the steps are 0 to 2"),
        ({"repetitions": {True: 1}}, "the key True, but the steps are 0 to 2"),
        ({"output_layers": ["outptu"]}, "output_layers: the network has no layer 'outptu'. Did you mean 'output'?"),
        ({"output_layers": 3}, "option 'output_layers' must be a list of strings, got 3"),
        ({"construction_algo": [{"#repetition": -2}]}, "step 0, '#repetition': repetitions must be a number of epochs"),
        ({"construction_algo": [{"#repetition": "3"}]}, "a number of epochs >= 0, not '3'"),
        ({"construction_algo": [{**chain(), "#trainable": 0.5}]}, "'#trainable' must be True or False, not 0.5"),
        ({"repetitions": {5: 1}}, "the key 5, but the steps are 0 to 2"),
        ({"construction_algo": lambda idx, net: net}, "returned 1000 steps and did not end"),
        ({"construction_algo": lambda idx, net: [net]}, "construction_algo(0, ...): expected a network dict or None"),
        ({"construction_algo": [{"#copy_param_mode": "all"}]}, "pretrain step 0: '#copy_param_mode' must be"),
        ({"construction_algo": [{"#config": 3}]}, "pretrain step 0: '#config' must be a dict"),
        ({"construction_algo": [{"#config": {1: 2}}]}, "'#config' must be a dict of settings by name, not {1: 2}"),
        ({"construction_algo": lambda idx: None}, "construction_algo must be a function of two arguments, (idx, net"),
        ({"construction_algo": int}, "construction_algo must be a function of two arguments, (idx, net_dict)"),
        (
            {"construction_algo": [{**chain(), "#config": {"gradient_clip": "a"}}]},
            "pretrain step 0: '#config': config key 'gradient_clip': expected a number, got 'a'",
        ),
    ],
)
def test_mistakes(pretrain: Any, message: str) -> None:
    with pytest.raises(ConfigError) as info:
        schedule_of(pretrain=pretrain).at(1)
    assert message in str(info.value)


@pytest.mark.parametrize("algo", ["from_input", "from_output"])
@pytest.mark.parametrize(
    "network, message",
    [
        ({"output": 3}, "Layer 'output' must be a dict of options, not 3"),
        ({"output": layer("h"), "h": None}, "Layer 'h' must be a dict of options, not None"),
        ({"output": {"class": "softmax", "from": 3}}, "Layer 'output': 'from' must be the name of a layer or a list"),
        ({"output": layer("h"), "h": {"class": "copy", "from": [[]]}}, "Layer 'h': 'from' must be the name of a layer"),
        ({"h": layer("data")}, "output_layers: the network has no layer 'output'"),
    ],
)
def test_malformed_networks(network: Net, message: str, algo: str) -> None:
    with pytest.raises(ConfigError) as info:
        schedule_of(network, pretrain={"construction_algo": algo}).at(1)
    assert message in str(info.value)


def test_sources_in_a_circle_end_the_steps() -> None:
    """The planning tells which layers form it."""
    network = {"output": layer("a"), "a": layer("b"), "b": layer("a", "data")}
    for algo in ("from_input", "from_output"):
        assert schedule_of(network, pretrain={"construction_algo": algo}).pretrain_epochs <= 5


def test_settings_of_a_step() -> None:
    net = {**chain(), "#config": {"batch_size": 7, "new": 1}, "#info": "small", "#copy_param_mode": "subset"}
    schedule = schedule_of(batch_size=100, pretrain={"construction_algo": [net], "copy_param_mode": "ifpossible"})
    first, second = schedule.at(1), schedule.at(2)
    assert (first.config.int("batch_size"), second.config.int("batch_size")) == (7, 100)
    assert sorted(first.layers) == sorted(chain()) and first.info == "small"
    assert (first.copy_mode, second.copy_mode) == ("subset", "ifpossible")
    assert first.same_network(second) and not first.same_settings(second)
    assert first.same_settings(second, but=("batch_size", "new"))
    assert len(schedule.distinct(1, 5)) == 2


def test_misspelt_settings_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(log, "warn", said.append)
    schedule = schedule_of(pretrain={"repetitions": 2, "construction_algo": [{**chain(), "#config": {"batchsize": 7}}]})
    schedule.distinct(1, 4)
    assert said == ["pretrain step 0: 'batchsize' in '#config' has no meaning. Did you mean 'batch_size'?"]


def test_values_by_epoch() -> None:
    network = chain()
    network["h1"]["dropout"] = WrapEpochValue(lambda epoch: 0.0 if epoch < 3 else 0.5)
    schedule = schedule_of(network)
    assert [schedule.at(epoch).layers["h1"]["dropout"] for epoch in (1, 2, 3, 9)] == [0.0, 0.0, 0.5, 0.5]
    assert len(schedule.distinct(1, 9)) == 2 and schedule.pretrain_epochs == 0
    grown = schedule_of(network, pretrain={"repetitions": 2})
    assert [grown.at(epoch).layers["h1"]["dropout"] for epoch in (2, 3)] == [0.0, 0.5]


def test_get_network() -> None:
    def get_network(epoch: int, **_: Any) -> Net:
        net = {"output": layer("data", n_out=1 + epoch // 3, L2=lambda: epoch // 3)}
        return {**net, "#config": {"batch_size": 5}} if epoch == 2 else net

    schedule = NetworkSchedule(Config({"get_network": get_network, "batch_size": 9}))
    assert [schedule.at(epoch).layers["output"]["n_out"] for epoch in (1, 2, 3)] == [1, 1, 2]
    assert [schedule.at(epoch).config.int("batch_size") for epoch in (1, 2, 3)] == [9, 5, 9]
    assert schedule.at(3).same_network(schedule.at(4)) is False  # the function in it sees another epoch
    assert schedule.at(1).pretrain is False and schedule.at(3).name == "get_network(epoch=3)"
    for settings, message in (
        ({"get_network": 3}, "must be a function or None"),
        ({"get_network": lambda epoch: None}, "get_network(epoch=1) must return a network dict"),
        ({"get_network": get_network, "pretrain": "default"}, "pretrain and get_network exclude each other"),
    ):
        with pytest.raises(ConfigError) as info:
            NetworkSchedule(Config(settings)).at(1)
        assert message in str(info.value)


@pytest.mark.parametrize(
    "settings, step, expected",
    [
        ({}, {}, [0.5, 0.5, 0.5, 0.1]),
        ({"pretrain_learning_rate": 0.2}, {}, [0.2, 0.2, 0.2, 0.1]),
        ({"use_learning_rate_control_always": True}, {}, [0.5, 0.5, 0.1, 0.1]),
        ({}, {"learning_rate": 0.3}, [0.3, 0.3, 0.3, 0.1]),
        ({"learning_rates": [0.7]}, {}, [0.7, 0.5, 0.5, 0.1]),
        ({"learning_rates": [0.7, 0.8, 0.9]}, {"learning_rates": {2: 0.4}}, [0.7, 0.4, 0.9, 0.1]),
    ],
)
def test_learning_rates(settings: Net, step: Net, expected: list[float]) -> None:
    """The control of the rates would say 0.1 from the third epoch on."""
    net = {**chain(), "#config": step}
    config = Config(
        {
            "network": chain(),
            "learning_rate": 0.5,
            "pretrain": {"construction_algo": [net], "repetitions": [3, 0]},
            "learning_rate_control": "newbob_abs",
            "newbob_error_threshold": -1e9,
            "min_learning_rate": 0.1,
            "learning_rate_decay": 0.01,
            **settings,
        }
    )
    schedule, control = NetworkSchedule(config), LearningRateControl.from_config(config)
    rates = []
    for epoch in (1, 2, 3, 4):
        rates.append(rate_of_epoch(control, schedule.at(epoch), epoch))
        control.set_errors(epoch, {"dev_score": 1.0})
    assert rates == expected


def test_a_derived_config_leaves_the_original_alone() -> None:
    config = Config({"a": 1, "b": 2})
    other = derived(config, {"a": 3}, hidden={"c": 4})
    assert (config.int("a"), other.int("a"), other.int("b"), other.int("c")) == (1, 3, 2, 4)
    assert "c" not in config
    again = derived(other, {})
    assert again.int("a") == 3 and [action[1] for action in again.recipe().actions] == ["a", "b", "a"]


def test_functions_of_the_config_see_settings_of_a_step(tmp_path: Any) -> None:
    path = tmp_path / "x.config"
    path.write_text("rate = 1\ndef ask():\n    return rate, config.int('rate'), config.int('other', 0)\n")
    config = Config.from_file(str(path))
    ask = config.typed("ask")
    with overridden(config, {"rate": 2, "other": 3}):
        assert ask() == (2, 2, 3)
    assert ask() == (1, 1, 0) and "other" not in config


def test_a_config_of_lines(tmp_path: Any) -> None:
    """Settings which are texts are read as what they mean."""
    path = tmp_path / "x.config"
    path.write_text(
        "pretrain default\npretrain_repetitions 2,1\npretrain_greedy false\npretrain_copy_output_layer true\n"
    )
    config = Config.from_file(str(path))
    config.set("network", chain())
    schedule = NetworkSchedule(config)
    assert schedule.pretrain_epochs == 4 and schedule.at(3).name == "pretrain step 1"
    assert schedule.at(3).mode_of("output") is None and "trainable" not in schedule.at(3).layers["h1"]


def test_misspelt_keys_of_a_network_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    def algo(idx: int, net: Net) -> Optional[Net]:
        return {**net, "#confg": {"batch_size": 3}, "#info": 1, "#note": 2} if idx < 2 else None

    assert schedule_of(pretrain={"construction_algo": algo}).at(1).settings == {}
    out = capsys.readouterr().out
    assert out.count("Warning") == 1 and "pretrain step 0: '#confg' in the network has no meaning" in out
    assert "Did you mean '#config'?" in out


def test_pretraining_without_epochs(capsys: pytest.CaptureFixture[str]) -> None:
    """It is one line in the log."""
    schedule = schedule_of(pretrain={"repetitions": 0})
    assert not schedule.pretrain_epochs
    assert "pretrain has no effect: all of its steps have 0 epochs." in capsys.readouterr().out
    schedule_of(pretrain={"repetitions": 1})
    assert "no effect" not in capsys.readouterr().out

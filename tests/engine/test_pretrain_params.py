"""Parameters on their way from one network to the next, without TensorFlow: what is copied where."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config, ConfigError
from returnn_tf.engine.pretrain.carry_over import (
    Transfer,
    axes_of_params,
    carried_values,
    common_blocks,
    misfit_text,
    plan_transfer,
)
from returnn_tf.engine.pretrain.checks import planned_networks
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.tensor.parts import Part

EXTERN = {"data": {"dim": 3}, "classes": {"dim": 2, "sparse": True}}
OUTPUT = {"class": "softmax", "loss": "ce", "target": "classes", "from": "h"}


def plan_of(network: dict[str, Any]) -> Plan:
    net = {"output": OUTPUT, **network}
    return plan_from_config(Config({"behavior_version": 21, "extern_data": EXTERN, "network": net}), train=True)


def values_of(plan: Plan) -> dict[str, np.ndarray]:
    """Return different numbers everywhere, from 1."""
    return {name: 1.0 + np.arange(spec.size, dtype="float32").reshape(spec.shape) for name, spec in plan.params.items()}


def grown(old: dict[str, Any], new: dict[str, Any], mode: Optional[str] = "subset") -> tuple[Transfer, Any, Any]:
    """Return the transfer, the old values, and the new ones with zeros where nothing was copied."""
    before, after = plan_of(old), plan_of(new)
    transfer = plan_transfer(before, after, lambda path: mode)
    values = values_of(before)
    return transfer, values, carried_values(transfer, values, lambda name: np.zeros(after.params[name].shape))


def lstm(n_out: int, *sources: str) -> dict[str, Any]:
    return {"class": "rec", "unit": "nativelstm2", "n_out": n_out, "from": list(sources)}


def test_an_lstm_grows_gate_by_gate() -> None:
    transfer, old, new = grown({"h": lstm(2, "data")}, {"h": lstm(3, "data")})
    assert sorted(transfer.grown) == ["h/rec/W", "h/rec/W_re", "h/rec/b", "output/W"] and transfer.copied == [
        "output/b"
    ]
    for name, shape in (("h/rec/W", (3, 4, 2)), ("h/rec/W_re", (2, 4, 2)), ("h/rec/b", (4, 2))):
        gates = new[name].reshape(new[name].shape[:-1] + (4, 3))
        rows = tuple(slice(0, size) for size in shape[:-2])
        np.testing.assert_array_equal(gates[rows][..., :2], old[name].reshape(shape))
        assert np.count_nonzero(gates) == old[name].size  # all else keeps its initial value
    np.testing.assert_array_equal(new["output/W"], np.pad(old["output/W"], [(0, 1), (0, 0)]))
    # gates are not mixed: the input gate of the new cell begins with that of the old one, then comes a new unit
    np.testing.assert_array_equal(new["h/rec/b"], [1, 2, 0, 3, 4, 0, 5, 6, 0, 7, 8, 0])


def test_an_lstm_shrinks_gate_by_gate() -> None:
    _, old, new = grown({"h": lstm(3, "data")}, {"h": lstm(2, "data")})
    np.testing.assert_array_equal(new["h/rec/b"], [1, 2, 4, 5, 7, 8, 10, 11])
    np.testing.assert_array_equal(new["output/W"], old["output/W"][:2])


def linear(n_out: int, *sources: str, **options: Any) -> dict[str, Any]:
    return {"class": "linear", "n_out": n_out, "from": list(sources), **options}


def two_sources(a: int, b: int) -> dict[str, Any]:
    return {"a": linear(a, "data"), "b": linear(b, "data"), "h": linear(2, "a", "b")}


@pytest.mark.parametrize("between", [{}, {"drop": {"class": "dropout", "from": ["a", "b"]}}])
def test_an_input_grows_source_by_source(between: dict[str, Any]) -> None:
    nets = []
    for a, b in ((1, 2), (2, 4)):
        net = {**two_sources(a, b), **between}
        if between:
            net["h"] = linear(2, "drop")
        nets.append(net)
    _, old, new = grown(*nets)
    rows = [0, 2, 3]  # where the rows of a and b are now
    np.testing.assert_array_equal(new["h/W"][rows], old["h/W"])
    assert not new["h/W"][[1, 4, 5]].any()


def test_sources_are_recognised_by_name() -> None:
    """A source in front of the others moves their rows."""
    old_net = two_sources(2, 3)
    new_net = {**two_sources(2, 3), "c": linear(1, "data"), "h": linear(2, "c", "b", "a")}
    _, old, new = grown(old_net, new_net)
    np.testing.assert_array_equal(new["h/W"][1:4], old["h/W"][2:])
    np.testing.assert_array_equal(new["h/W"][4:], old["h/W"][:2])
    assert not new["h/W"][0].any()


def test_transposed_weights() -> None:
    nets = [{**two_sources(a, 2), "h": linear(2, "a", "b", use_transposed_weights=True)} for a in (1, 2)]
    _, old, new = grown(*nets)
    np.testing.assert_array_equal(new["h/W"][:, [0, 2, 3]], old["h/W"])


def test_a_cell_in_a_loop() -> None:
    """Rows of the kernel: both sources, then the state."""

    def loop(n: int) -> dict[str, Any]:
        unit = {
            "cell": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": n, "from": ["data:source", "prev:output"]},
            "output": {"class": "linear", "n_out": 2 * n, "from": "cell"},
        }
        return {"h": {"class": "rec", "from": "data", "unit": unit}}

    transfer, old, new = grown(loop(1), loop(2))
    name = next(name for name in transfer.grown if name.endswith("kernel"))
    assert old[name].shape == (3 + 2 + 1, 4) and new[name].shape == (3 + 4 + 2, 8)
    np.testing.assert_array_equal(new[name][[0, 1, 2, 3, 4, 7]][:, ::2], old[name])
    assert np.count_nonzero(new[name]) == old[name].size


def test_a_gru_keeps_its_gates_apart() -> None:
    nets = [{"h": {"class": "rec", "unit": "gru", "n_out": n, "from": "data"}} for n in (1, 2)]
    _, old, new = grown(*nets)
    name = next(name for name in old if name.endswith("gates/kernel"))
    np.testing.assert_array_equal(new[name][[0, 1, 2, 3]][:, [0, 2]], old[name])


def test_attention_heads_keep_query_key_and_value() -> None:
    nets = [
        {"h": {"class": "self_attention", "num_heads": 2, "total_key_dim": 2 * k, "n_out": 4, "from": "data"}}
        for k in (1, 2)
    ]
    _, old, new = grown(*nets)
    columns = [0, 2, 4, 5, 6, 8, 10, 11]  # of each head: query, key, two of the value
    np.testing.assert_array_equal(new["h/QKV"][:, columns], old["h/QKV"])


def test_the_parts_of_a_unit_with_heads() -> None:
    """No number is lost, and the rows of the next layer follow the heads."""
    unit = {"class": "rec", "from": ["a", "b"], "unit_opts": {"num_heads": 2}}
    nets = [
        {"a": linear(n, "data"), "b": linear(1, "data"), "h": {**unit, "unit": "mlstm", "n_out": 4 * n}} for n in (1, 2)
    ]
    _, old, new = grown(*nets)
    assert all(np.count_nonzero(new[name]) == old[name].size for name in old)
    np.testing.assert_array_equal(new["h/rec/W_gates"], np.insert(old["h/rec/W_gates"], 1, 0, axis=0))
    np.testing.assert_array_equal(new["output/W"][[0, 1, 4, 5]], old["output/W"])


def test_mamba2_grows_by_heads() -> None:
    nets = [
        {"h": {"class": "rec", "unit": "mamba2", "unit_opts": {"headdim": 2}, "n_out": n, "from": "data"}}
        for n in (2, 4)
    ]
    _, old, new = grown(*nets)
    assert all(np.count_nonzero(new[name]) == old[name].size for name in old)


def test_rows_follow_the_heads_of_attention() -> None:
    nets = [
        {"h": {"class": "self_attention", "num_heads": 2, "total_key_dim": 2, "n_out": n, "from": "data"}}
        for n in (2, 4)
    ]
    _, old, new = grown(*nets)
    np.testing.assert_array_equal(new["output/W"][[0, 2]], old["output/W"])


@pytest.mark.parametrize(
    "mode, expected",
    [
        ("subset", (["h/b", "output/b"], ["h/W", "output/W"], [])),
        ("ifpossible", (["h/b", "output/b"], [], ["h/W", "output/W"])),
        ("reset", ([], [], ["h/W", "h/b", "output/W", "output/b"])),
    ],
)
def test_modes(mode: str, expected: tuple[list[str], list[str], list[str]]) -> None:
    old = {"h": linear(2, "data"), "gone": linear(1, "data", is_output_layer=True), "output": {**OUTPUT, "from": "h"}}
    new = {"h": linear(2, "up"), "up": linear(4, "data"), "output": {**OUTPUT, "from": ["h", "up"]}}
    transfer, values, after = grown(old, new, mode)
    assert (sorted(transfer.copied), sorted(transfer.grown), sorted(transfer.reset)) == expected
    assert transfer.fresh == ["up/W", "up/b"] and transfer.dropped == ["gone/W", "gone/b"]
    for name in transfer.copied:
        assert after[name] is values[name]
    text = str(transfer)
    assert "2 new (up/W, up/b)" in text and "2 dropped (gone/W, gone/b)" in text


def test_another_shape_without_a_mode_starts_anew_with_a_warning() -> None:
    transfer, _, new = grown({"h": linear(2, "data")}, {"h": linear(3, "data")}, None)
    assert transfer.reset == ["h/W", "h/b", "output/W"] and transfer.copied == ["output/b"] == list(new)
    assert misfit_text(transfer, "step 0", "step 1") == (
        "From step 0 to step 1, parameters with another shape are initialised again: h/W ([3, 2] -> [3, 3]), "
        "h/b ([2] -> [3]), output/W ([2, 2] -> [3, 2]). copy_param_mode 'subset' copies the block that both "
        "have, 'ifpossible' says that this is intended."
    )
    for mode in ("subset", "ifpossible", "reset"):
        transfer, _, _ = grown({"h": linear(2, "data")}, {"h": linear(3, "data")}, mode)
        assert misfit_text(transfer, "step 0", "step 1") is None


def test_another_rank_starts_anew() -> None:
    conv = {"class": "conv", "filter_size": (3,), "padding": "same", "n_out": 2, "from": "data", "name_scope": ""}
    old, new = {"h": {**conv, "name_scope": "h"}}, {"h": linear(2, "data")}
    transfer, _, _ = grown(old, new)
    assert transfer.dropped and "h/W" in transfer.fresh + transfer.reset


def test_parts_of_axes() -> None:
    axes = axes_of_params(plan_of({**two_sources(1, 2), "h": lstm(2, "a", "b")}))
    assert axes["h/rec/W"] == [[Part("a", 1), Part("b", 2)], [Part("gate %d" % i, 2) for i in range(4)]]
    assert axes["h/rec/W_re"][0] == [Part("gate 0", 2)] and len(axes["h/rec/b"][0]) == 4
    blocks = common_blocks([Part("a", 2), Part("b", 3)], [Part("b", 2), Part("c", 4)])
    assert blocks == [(slice(2, 4), slice(0, 2)), (slice(0, 2), slice(2, 4))]


def schedule_of(steps: list[dict[str, Any]], network: dict[str, Any], **pretrain: Any) -> NetworkSchedule:
    config = {"behavior_version": 21, "extern_data": EXTERN, "network": {"output": OUTPUT, **network}}
    steps = [{"output": OUTPUT, **step} for step in steps]
    return NetworkSchedule(Config({**config, "pretrain": {"construction_algo": steps, **pretrain}}))


def test_all_steps_are_planned_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    good = schedule_of([{"h": linear(1, "data"), "#copy_param_mode": "subset"}], {"h": linear(2, "data")})
    assert len(planned_networks(good, 1, 5)) == 2
    assert "From pretrain step 0 to pretrain step 1, parameters with another shape" in capsys.readouterr().out
    good = schedule_of([{"h": linear(1, "data")}], {"h": linear(2, "data")}, copy_param_mode="subset")
    assert [entry.name for entry, _ in planned_networks(good, 1, 5)] == ["pretrain step 0", "pretrain step 1"]
    assert "initialised again" not in capsys.readouterr().out
    bad = schedule_of([{"h": linear(2, "data")}, {"h": linear(2, "dta")}], {"h": linear(2, "data")})
    with pytest.raises(ConfigError) as info:
        planned_networks(bad, 1, 5)
    assert str(info.value).startswith("pretrain step 1: Layer 'h'") and "dta" in str(info.value)
    no_loss = schedule_of([{"output": linear(2, "data")}], {"h": linear(2, "data")})
    with pytest.raises(ConfigError, match="The network of pretrain step 0 has no loss"):
        planned_networks(no_loss, 1, 5)


@pytest.mark.parametrize(
    "options, fresh",
    [
        ({}, ["output/W"]),
        ({"copy_output_layer": False}, ["output/W", "output/b"]),
        ({"copy_output_layer": True}, ["output/W"]),
    ],
)
def test_the_output_layer(options: dict[str, Any], fresh: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the steps of "from_output" its weights may have other shapes."""
    network = {"h1": linear(2, "data"), "h": linear(4, "h1"), "output": OUTPUT}
    config = {"behavior_version": 21, "extern_data": EXTERN, "network": network, "pretrain": dict(options) or True}
    schedule = NetworkSchedule(Config(config))
    (first, plan), (second, after) = planned_networks(schedule, 1, 5)[:2]
    transfer = plan_transfer(plan, after, second.mode_of)
    assert transfer.reset == fresh and "h1/W" in transfer.copied
    # only True asks for the same as everywhere, where nothing says that starting anew is intended
    assert ("initialised again" in capsys.readouterr().out) is (options == {"copy_output_layer": True})

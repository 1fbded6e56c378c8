"""States kept from batch to batch: pieces of sequences, one after the other, give what the whole sequences give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.engine.passes.evaluator import Evaluator
from returnn_tf.engine.passes.step_trainer import StepTrainer
from tests.tiers import usual

DIM = 4
LENS = np.array([9, 4, 7], "int32")
#: The sequences are cut here; the second one has ended before the last piece.
PIECES = ((0, 3), (3, 5), (5, 9))
ATTENTION: dict[str, Any] = {"class": "self_attention", "num_heads": 2, "total_key_dim": 4, "n_out": DIM}


def loop(cell: dict[str, Any], moved: bool, **options: Any) -> dict[str, Any]:
    """Return a loop over the frames, in which the cell is "s"."""
    unit = {"s": cell, "output": {"class": "copy", "from": "s"}, **options.pop("unit", {})}
    return {"class": "rec", "from": "data", "optimize_move_layers_out": moved, "unit": unit, **options}


def layers(state: Any) -> dict[str, dict[str, Any]]:
    """Return networks by name, in which a layer has this initial state."""

    def rec(unit: str, **options: Any) -> dict[str, Any]:
        return {"class": "rec", "unit": unit, "n_out": DIM, "from": "data", "initial_state": state, **options}

    cell = {"class": "rnn_cell", "unit": "standardlstm", "n_out": DIM, "from": "data:source", "initial_state": state}
    attention = {**ATTENTION, "initial_state": state}
    return {
        "lstm": rec("lstm"),
        "gru": rec("gru"),
        "states of other sizes": rec("mamba2", unit_opts={"headdim": 4, "d_state": 3}),
        "one tensor": rec("lstm", initial_state={"h": state, "c": state}),
        "cell moved": loop(cell, True),
        "cell": loop(cell, False),
        "cell of rec": loop({**cell, "class": "rec", "unit": "gru"}, False),
        "cell with states of other sizes": loop({**cell, "unit": "mamba", "unit_opts": {"d_state": 3}}, False),
        "attention": {**attention, "attention_left_only": True, "from": "data"},
        "attention moved": loop({**attention, "from": "data:source"}, True),
        "attention in the loop": loop({**attention, "from": "data:source"}, False),
        "masked": loop(
            {"class": "masked_computation", "mask": "mask", "from": "data:source",
             "unit": {**cell, "class": "rec", "unit": "lstm", "from": "data"}}, False,
            unit={"sum": {"class": "reduce", "mode": "sum", "axis": "F", "from": "data:source"},
                  "mask": {"class": "compare", "kind": "greater", "value": 0.0, "from": "sum"}}),
    }  # fmt: skip


NAMES = list(layers("zeros"))


def net_of(layer: dict[str, Any], **options: Any) -> Network:
    """Return a network with a loss, and random parameters."""
    network = {"output": layer, "loss": {"class": "eval", "eval": "source(0) ** 2", "from": "output", "loss": "as_is"}}
    config = Config({"extern_data": {"data": {"dim": DIM}}, "network": network, "behavior_version": 21, **options})
    net = Network.from_config(config, train=True)
    rng = np.random.default_rng(1)
    for _, variable in sorted(net.stored_params.items()):
        variable.assign(rng.normal(size=variable.shape, scale=0.7))
    return net


def whole() -> np.ndarray:
    """Return all frames."""
    return np.random.default_rng(2).normal(size=(len(LENS), max(LENS), DIM)).astype("float32")


def piece(begin: int, end: int, rows: slice = slice(None)) -> dict[str, np.ndarray]:
    """Return the feed of a piece of all sequences, with garbage in the padding."""
    lens = np.clip(LENS - begin, 0, end - begin)
    data = whole()[:, begin:end].copy()
    data[np.arange(end - begin) >= lens[:, None]] = 30.0
    return {"data": data[rows], "data/size0": lens[rows].astype("int32")}


def check_pieces(run: Any, expected: np.ndarray) -> None:
    """Check that the output of all pieces is that of the whole sequences."""
    for begin, end in PIECES:
        value = run(piece(begin, end))
        for b, n in enumerate(LENS):
            valid = max(min(n, end) - begin, 0)
            np.testing.assert_allclose(value[b, :valid], expected[b, begin : begin + valid], rtol=1e-4, atol=1e-5)


def output_of(net: Network) -> Any:
    """Return a function from a feed to the output."""
    return lambda feed: net.run(feed, train=False).layers["output"].value


@pytest.mark.parametrize("name", NAMES)
def test_pieces_continue_each_other(name: str) -> None:
    """Each sequence with its own state, also when it ends within a piece; another pass begins anew."""
    expected = output_of(net_of(layers("zeros")[name]))(piece(0, max(LENS)))
    net = net_of(layers("keep_over_epoch")[name])
    check_pieces(output_of(net), expected)
    net.begin_pass()
    check_pieces(output_of(net), expected)


@pytest.mark.parametrize("name", NAMES)
def test_pieces_of_different_lengths(name: str) -> None:
    """A sequence that ends before the others in a batch goes on from its own last frame, not from the padding."""
    expected = output_of(net_of(layers("zeros")[name]))(piece(0, max(LENS)))
    run = output_of(net_of(layers("keep_over_epoch")[name]))
    starts = np.zeros_like(LENS)
    for lens in ([5, 1, 2], [1, 3, 1], [3, 0, 4]):
        data = np.full([len(LENS), max(lens), DIM], 30.0, "float32")
        for b, n in enumerate(lens):
            data[b, :n] = whole()[b, starts[b] : starts[b] + n]
        value = run({"data": data, "data/size0": np.array(lens, "int32")})
        for b, n in enumerate(lens):
            want = expected[b, starts[b] : starts[b] + n]
            np.testing.assert_allclose(value[b, :n], want, rtol=1e-4, atol=1e-5)
        starts += lens


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "cell", "attention"])
def test_without_init(name: str) -> None:
    """The state of the last pass is the first of the next one."""
    reset, net = net_of(layers("keep_over_epoch")[name]), net_of(layers("keep_over_epoch_no_init")[name])
    first = [output_of(net)(piece(0, 3)), output_of(reset)(piece(0, 3))]
    np.testing.assert_allclose(*first)
    for each in (reset, net):
        each.begin_pass()
    second = [output_of(net)(piece(0, 3)), output_of(reset)(piece(0, 3))]
    np.testing.assert_allclose(second[1], first[1])
    assert abs(second[0] - first[0]).max() > 0.01


@pytest.mark.sampled
@pytest.mark.parametrize("state", ["keep_over_epoch", "keep_over_epoch_no_init"])
@pytest.mark.parametrize("name", ["lstm", "cell", "attention in the loop"])
def test_states_among_the_parameters_of_a_checkpoint(name: str, state: str) -> None:
    """A checkpoint of RETURNN has no other ones; the next pass begins with them, unless it resets them."""
    net, resumed = (net_of(layers(state)[name]) for _ in range(2))
    first = output_of(net)(piece(0, 3))
    StepTrainer(resumed, resumed.config).restore_kept_states({}, {k: v.numpy() for k, v in net.kept.params.items()})
    second = output_of(resumed)(piece(0, 3))
    net.begin_pass()
    np.testing.assert_allclose(second, output_of(net)(piece(0, 3)), rtol=1e-5)
    assert (abs(second - first).max() > 0.01) == state.endswith("no_init")


def test_states_that_do_not_fit_start_over() -> None:
    net = net_of(layers("keep_over_epoch_no_init")["lstm"])
    first = output_of(net)(piece(0, 3))
    net.kept.restore_params({"output/rec/keep_state_h": np.ones([3, DIM + 1], "float32")})
    np.testing.assert_allclose(output_of(net)(piece(0, 3)), first)


@pytest.mark.parametrize("name", ["lstm", "cell", "cell moved", "attention", "attention in the loop"])
def test_variables(name: str) -> None:
    """They are not trained, and not stored; those of cells, and in loops, are listed among the parameters."""
    net = net_of(layers("keep_over_epoch")[name])
    names = {
        "lstm": ["output/rec/keep_state_c", "output/rec/keep_state_h"],
        "cell": ["output/rec/s/keep_state_c", "output/rec/s/keep_state_h"],
        "cell moved": ["output/rec/s/rec/keep_state_c", "output/rec/s/rec/keep_state_h"],
        "attention": [],
        "attention in the loop": ["output/rec/s/keep_state_k_left", "output/rec/s/keep_state_v_left"],
    }[name]
    assert sorted(set(net.params) - set(net.stored_params)) == names
    assert not any("keep" in key for key in [*net.trainable_params, *net.get_param_values()])
    assert sorted(key for key in net.param_specs if "keep" in key) == names
    for key, spec in net.param_specs.items():
        assert (spec.shape, spec.dtype) == (tuple(net.params[key].shape), net.params[key].dtype.name)
        assert spec.trainable == (key not in names)
    for key in names[:2] if "attention" not in name else ():
        assert net.params[key].shape.as_list() == [None, DIM]
        assert net.params[key].numpy().shape == (1, DIM)


def test_another_number_of_sequences() -> None:
    """A batch must continue the last one, unless a pass begins."""
    net = net_of(layers("keep_over_epoch")["cell"])
    net.run(piece(0, 3))
    with pytest.raises(DataError, match=r"Layer 'output/s' keeps its state .* has 2 and the last one had 3.*max_seqs"):
        net.run(piece(3, 5, slice(0, 2)))
    net.begin_pass()
    net.run(piece(0, 3, slice(0, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("name", usual(["lstm", "cell", "attention"], ["cell", "attention"]))
def test_training_and_evaluation(name: str) -> None:
    """The trainer keeps states, too; an evaluation in between begins with zeros and changes nothing."""
    settings = {"optimizer": {"class": "sgd"}, "learning_rate": 0.0}
    config = Config(settings)
    losses = {}
    for state in ("zeros", "keep_over_epoch"):
        net = net_of(layers(state)[name], **settings)
        trainer, evaluator = StepTrainer(net, config), Evaluator(net, config)
        feeds = [piece(0, max(LENS))] if state == "zeros" else [piece(*p) for p in PIECES]
        losses[state] = 0.0
        for feed in feeds:
            losses[state] += trainer.step(feed).total_loss
            with net.kept.another_pass():
                single = evaluator.step(piece(0, 3, slice(1, 2))).total_loss
        losses["eval " + state] = single
    np.testing.assert_allclose(losses["zeros"], losses["keep_over_epoch"], rtol=1e-4)
    np.testing.assert_allclose(losses["eval zeros"], losses["eval keep_over_epoch"], rtol=1e-5)


@pytest.mark.parametrize("name", ["lstm", "attention"])
def test_a_batch_of_another_process(name: str) -> None:
    """A process that has no batch left computes something of any size, which must not count."""
    net = net_of(layers("keep_over_epoch")[name])
    run = output_of(net)
    run(piece(0, 3))
    before = net.kept.values()
    net.kept.set_idle(True)
    result = net.kept
    run(piece(0, 3))  # of the same size; of another one it must not fail either
    net.kept.set_idle(False)
    result.restore(before)
    expected = output_of(net_of(layers("zeros")[name]))(piece(0, max(LENS)))
    np.testing.assert_allclose(run(piece(3, 5))[0], expected[0, 3:5], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_restore() -> None:
    """The states of a checkpoint continue; without them everything begins anew."""
    net = net_of(layers("keep_over_epoch")["attention"])
    run = output_of(net)
    first = run(piece(0, 3))
    values = net.kept.values()
    second = run(piece(3, 5))
    other = net_of(layers("keep_over_epoch")["attention"])
    other.kept.restore(values)
    np.testing.assert_array_equal(output_of(other)(piece(3, 5)), second)
    other.kept.restore({})
    np.testing.assert_array_equal(output_of(other)(piece(0, 3)), first)


@pytest.mark.slow
def test_last_batch_only() -> None:
    """With restrict_state_to_last_seq frames before the last batch are forgotten."""
    layer = {**layers("keep_over_epoch")["attention"], "restrict_state_to_last_seq": True}
    for form in (layer, loop({**layer, "from": "data:source"}, False)):
        net = net_of(form)
        run = output_of(net)
        for begin, end in ((0, 3), (3, 5)):
            run(piece(begin, end))
        third = run(piece(5, 9))
        net.begin_pass()
        run(piece(3, 5))
        np.testing.assert_allclose(third[0], run(piece(5, 9))[0], rtol=1e-5)


@pytest.mark.parametrize(("layer", "match"), [
    ({"class": "rec", "unit": "lstm", "n_out": 3, "from": "data", "initial_state": "keep"}, "no layer 'keep'"),
    ({**ATTENTION, "from": "data", "initial_state": "ones"}, "initial_state must be None, 'zeros', 'keep_over_epoch'"),
    ({**ATTENTION, "from": "data", "restrict_state_to_last_seq": True}, "needs a state"),
    (loop({"class": "rec", "from": "base:data", "unit": {
        "output": {"class": "rnn_cell", "unit": "lstm", "n_out": 3, "from": ["prev:output", "data:source"],
                   "initial_state": "keep_over_epoch"}}}, False), "can't be kept from batch to batch here"),
    (loop({"class": "rec", "from": "base:data", "unit": "lstm", "n_out": 3, "initial_state": "keep_over_epoch"}, False),
     "can't be kept from batch to batch here"),
])  # fmt: skip
def test_errors(layer: dict[str, Any], match: str) -> None:
    """Unknown values, and places where a state can't be kept."""
    config = Config({"extern_data": {"data": {"dim": DIM}}, "network": {"output": layer}, "behavior_version": 21})
    with pytest.raises(ConfigError, match=match):
        plan_from_config(config)


@pytest.mark.slow
@pytest.mark.parametrize("beam", [1, 3])
def test_pieces_in_a_search(beam: int) -> None:
    """The state after a piece is that of the best hypothesis; of labels that do not depend on each other, of all."""

    def net(state: str) -> Network:
        unit = {
            "emb": {"class": "linear", "activation": None, "n_out": DIM, "from": "prev:output"},
            "no": {"class": "eval", "eval": "source(0) * 0.0", "from": "emb"},
            "c": {"class": "rnn_cell", "unit": "standardlstm", "n_out": DIM, "from": ["data:source", "no"],
                  "initial_state": state},
            "p": {"class": "softmax", "n_out": 5, "from": "c"},
            "output": {"class": "choice", "target": "classes", "beam_size": beam, "from": "p", "initial_output": 0},
        }  # fmt: skip
        network = {"loop": {"class": "rec", "from": "data", "unit": unit, "include_eos": True}}
        network["output"] = {"class": "decide", "from": "loop"}
        data = {"data": {"dim": DIM}, "classes": {"dim": 5, "sparse": True}}
        config = Config({"extern_data": data, "network": network, "behavior_version": 21})
        made = Network.from_config(config, search=True)
        rng = np.random.default_rng(1)
        for _, variable in sorted(made.stored_params.items()):
            variable.assign(rng.normal(size=variable.shape, scale=2.0))
        return made

    expected = net("zeros").run(piece(0, max(LENS))).layers["output"].value
    assert len(np.unique(expected[0])) > 1
    kept = net("keep_over_epoch")
    check_pieces(lambda feed: kept.run(feed).layers["output"].value, expected)

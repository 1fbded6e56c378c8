"""States that layers keep from run to run: in variables that a decoder reads and writes, or fed and fetched."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import returnn_tf
from returnn_tf.export.meta.graph_builder import GraphBuilder
from tests.export.meta_session import MetaSession, inputs

LABELS = 7
DATA = {"delayed": {"dim": LABELS, "sparse": True, "available_for_inference": True},
        "data": {"dim": LABELS, "sparse": True, "available_for_inference": False}}  # fmt: skip
UPDATES = "update_ops"


def language_model(*layers, **output):
    """Embedding, the given layers by name one after the other, log softmax."""
    network = {"input": {"class": "linear", "n_out": 4, "activation": None, "from": "data:delayed"}}
    last = "input"
    for i, layer in enumerate(layers):
        name = "lstm%d" % i
        network[name], last = {**layer, "from": last}, name
    network["output"] = {"class": "softmax", "activation": "log_softmax", "loss": "ce", "target": "data", "from": last,
                         **output}  # fmt: skip
    return network


LSTM = {"class": "rec", "unit": "nativelstm2", "n_out": 5, "initial_state": "keep_over_epoch_no_init"}
GRU = {"class": "rec", "unit": "gru", "n_out": 3, "initial_state": "keep_over_epoch_no_init"}
ATTENTION = {"class": "self_attention", "num_heads": 2, "total_key_dim": 6, "n_out": 4, "attention_left_only": True,
             "initial_state": "keep_over_epoch_no_init"}  # fmt: skip
LOOP = {"class": "rec", "unit": {
    "s": {"class": "rnn_cell", "unit": "lstm", "n_out": 5, "from": ["data:source", "prev:s"],
          "initial_state": "keep_over_epoch_no_init"},
    "output": {"class": "copy", "from": "s"}}}  # fmt: skip


def config_of(network):
    return returnn_tf.Config(
        {"extern_data": DATA, "target": "data", "network": network, "behavior_version": 21, "random_seed": 3}
    )


def meta_of(network, **options):
    config = config_of(network)
    plan = returnn_tf.Network.plan(config, evaluate=options.get("losses", False))
    builder = GraphBuilder(plan, config, **options)
    builder.emit_network()
    return builder.meta_graph()


def with_parameters(network, tmp_path):
    """Return a session with the parameters of a network, and that network without kept states."""

    def plain(layer):
        unit = layer.get("unit")
        inner = {"unit": {key: plain(value) for key, value in unit.items()}} if isinstance(unit, dict) else {}
        return {**{key: value for key, value in layer.items() if key != "initial_state"}, **inner}

    net = returnn_tf.Network.from_config(config_of({name: plain(layer) for name, layer in network.items()}))
    returnn_tf.save_checkpoint(net, str(tmp_path / "lm"))
    return MetaSession(meta_of(network, losses=True), str(tmp_path / "lm")), net


def words(seed=1, batch=3, frames=9):
    return np.random.RandomState(seed).randint(0, LABELS, [batch, frames]).astype("int32")


def whole(net, labels, lens=None):
    """Return the output for whole sequences, batch-major."""
    lens = np.full([len(labels)], labels.shape[1], "int32") if lens is None else lens
    return (
        net.run({"delayed": labels, "delayed/size0": lens, "data": labels, "data/size0": lens}).layers["output"].value
    )


def block(labels, lens=None):
    lens = [labels.shape[1]] * len(labels) if lens is None else lens
    return inputs({"delayed": labels, "delayed/size0": np.array(lens, "int32")})


@pytest.mark.slow
@pytest.mark.parametrize("layers", [[LSTM, LSTM], [GRU], [ATTENTION], [LOOP], [ATTENTION, LSTM]],
                         ids=["lstm", "gru", "attention", "loop", "both"])  # fmt: skip
def test_three_blocks_are_the_whole(layers, tmp_path):
    """Each run goes on with the states of the one before; each sequence with its own, which ends where it ends."""
    network = language_model(*layers)
    session, net = with_parameters(network, tmp_path)
    labels = words()
    expected = whole(net, labels)
    with session:
        updates = session.collection(UPDATES)
        for begin, end in ((0, 4), (4, 5), (5, 9)):
            (found,) = session.run(["output/output_batch_major"], block(labels[:, begin:end]), updates)
            np.testing.assert_allclose(found, expected[:, begin:end], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [[LSTM], [ATTENTION], [LOOP]], ids=["lstm", "attention", "loop"])
def test_blocks_of_different_lengths(layers, tmp_path):
    """A state is that at the end of each sequence; padding is never seen."""
    session, net = with_parameters(language_model(*layers), tmp_path)
    with session:
        updates, first, second, third = session.collection(UPDATES), words(1, 2, 4), words(2, 2, 3), words(3, 2, 2)
        session.run([], block(first, [4, 2]), updates)
        session.run([], block(second, [1, 3]), updates)
        (found,) = session.run(["output/output_batch_major"], block(third), updates)
    for i, lens in enumerate(((4, 1), (2, 3))):
        labels = np.concatenate([first[i, : lens[0]], second[i, : lens[1]], third[i]])[None]
        np.testing.assert_allclose(found[i], whole(net, labels)[0, -2:], atol=1e-5)


@pytest.mark.slow
def test_state_variables_of_a_language_model(tmp_path):
    """Names, order, shapes; a decoder cuts, joins and writes them, for any number of hypotheses."""
    session, net = with_parameters(language_model(LSTM), tmp_path)
    names = ["lstm0/rec/keep_state_c", "lstm0/rec/keep_state_h"]
    labels = words(5, 2, 6)
    with session:
        meta = session.meta
        assert session.collection("_RETURNN_state_vars") == [name + ":0" for name in names]
        nodes = {node.name: node for node in meta.graph_def.node}
        for name in names:
            assert [dim.size for dim in nodes[name].attr["shape"].shape.dim] == [-1, 5]
            assert session.variables[name + ":0"].variable_name == name + ":0"
            assert not session.variables[name + ":0"].trainable
            assert not session.read(name + ":0").any()
            restored = nodes["save/RestoreV2/tensor_names"].attr["value"].tensor.string_val
            assert name.encode() not in list(restored)
        session.run([], block(labels[:, :4]), session.collection(UPDATES))
        states = [session.read(name + ":0") for name in names]
        assert [state.shape for state in states] == [(2, 5), (2, 5)]
        # three hypotheses: two go on from the second sequence, one from the first
        chosen = [1, 1, 0]
        for name, state in zip(names, states):
            session.write(name + ":0", state[chosen])
        (found,) = session.run(["output/output_batch_major"], block(labels[chosen, 4:]), session.collection(UPDATES))
        assert session.read(names[0] + ":0").shape == (3, 5)
    np.testing.assert_allclose(found, whole(net, labels)[chosen, 4:], atol=1e-5)
    assert "epoch_step" not in nodes
    assert len(meta.collection_def[UPDATES].node_list.value) == 2


@pytest.mark.parametrize("layer", [LSTM, ATTENTION], ids=["lstm", "attention"])
def test_states_of_other_sequences(layer, tmp_path):
    """Another number of sequences than that of the states is an error, also a multiple of it."""
    session, _ = with_parameters(language_model(layer), tmp_path)
    with session:
        session.run([], block(words(batch=2, frames=3)), session.collection(UPDATES))
        for batch in (1, 3, 4):
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(["output/output_batch_major"], block(words(batch=batch, frames=2)))


@pytest.mark.slow
def test_history_of_an_attention(tmp_path):
    """[batch, heads, time, dim per head]: the first unknown axis after the batch is the time."""
    session, net = with_parameters(language_model(ATTENTION), tmp_path)
    labels = words(5, 2, 6)
    with session:
        names = session.collection("_RETURNN_state_vars")
        assert names == ["lstm0/keep_state_k_left:0", "lstm0/keep_state_v_left:0"]
        assert [session.read(name).shape for name in names] == [(1, 2, 0, 3), (1, 2, 0, 2)]
        session.run([], block(labels[:, :4]), session.collection(UPDATES))
        states = [session.read(name) for name in names]
        assert [state.shape for state in states] == [(2, 2, 4, 3), (2, 2, 4, 2)]
        for name, state in zip(names, states):
            session.write(name, state[[1, 0, 1]])
        (found,) = session.run(["output/output_batch_major"], block(labels[[1, 0, 1], 4:]))
    np.testing.assert_allclose(found, whole(net, labels)[[1, 0, 1], 4:], atol=1e-5)


@pytest.mark.slow
def test_epoch_step_begins_anew(tmp_path):
    """With "keep_over_epoch" the state is zero where epoch_step is 0."""
    network = language_model({**LSTM, "initial_state": "keep_over_epoch"})
    session, net = with_parameters(network, tmp_path)
    labels = words(1, 2, 4)
    expected = whole(net, labels)
    with session:
        effects = ["post_control_dependencies"]
        for step, begin, end in ((0, 0, 2), (1, 2, 4), (0, 0, 4)):
            feed = {**block(labels[:, begin:end]), "epoch_step": step}
            (found,) = session.run(["output/output_batch_major"], feed, effects)
            np.testing.assert_allclose(found, expected[:, begin:end], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "scope", "parts"), [
    (LSTM, "lstm0/rec", {"c": (2, 5), "h": (2, 5)}),
    (GRU, "lstm0/rec", {"var": (2, 3)}),
    (ATTENTION, "lstm0", {"k_left": (2, 2, 0, 3), "v_left": (2, 2, 0, 2)}),
], ids=["lstm", "gru", "attention"])  # fmt: skip
def test_states_that_are_fed(layer, scope, parts, tmp_path):
    """Placeholders for the states before a run, and the states after it."""
    session, net = with_parameters(language_model({**layer, "initial_state": "placeholder"}), tmp_path)
    labels = words(1, 2, 6)
    states = {part: np.zeros(shape, "float32") for part, shape in parts.items()}
    with session:
        assert not session.meta.collection_def[UPDATES].node_list.value
        for begin, end in ((0, 1), (1, 4), (4, 6)):
            feed = block(labels[:, begin:end])
            feed.update({"%s/initial_state_placeholder_%s" % (scope, part): value for part, value in states.items()})
            names = ["%s/last_state_%s" % (scope, part) for part in parts]
            found, *last = session.run(["output/output_batch_major", *names], feed)
            states = dict(zip(parts, last))
            np.testing.assert_allclose(found, whole(net, labels)[:, begin:end], atol=1e-5)


def test_weights_for_scores_outside(tmp_path):
    """With use_transposed_weights a decoder that computes the output layer itself gets a row for each label."""
    session, net = with_parameters(language_model(LSTM, use_transposed_weights=True), tmp_path)
    with session:
        weights, bias = session.run(["output/W/read", "output/b/read"], {})
        assert weights.shape == (LABELS, 5) and bias.shape == (LABELS,)
        hidden, found = session.run(["lstm0/rec/output_batch_major", "output/output_batch_major"], block(words()))
    scores = hidden @ weights.T + bias
    np.testing.assert_allclose(scores - np.log(np.exp(scores).sum(-1, keepdims=True)), found, atol=1e-5)


def test_initialisers_need_no_feed():
    """All in one run, before anything else is known; of a graph that went through a file."""
    meta = meta_of(language_model(LSTM, ATTENTION))
    graph = graph_pb2.GraphDef.FromString(meta.graph_def.SerializeToString())
    assert {node.name for node in graph.node if node.op == "Placeholder"} == {
        "extern_data/placeholders/delayed/delayed", "extern_data/placeholders/delayed/delayed_dim0_size",
        "extern_data/placeholders/data/data", "extern_data/placeholders/data/data_dim0_size"}  # fmt: skip
    with MetaSession(meta) as session:
        shapes = {name: session.read(name).shape for name in session.variables}
    assert shapes["lstm0/rec/keep_state_h:0"] == (1, 5) and shapes["lstm1/keep_state_k_left:0"] == (1, 2, 0, 3)

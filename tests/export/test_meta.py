"""The graph of a plan with the names and collections that decoders know, run in RASR's order of loading."""

from __future__ import annotations

import json

import numpy as np
import pytest

import returnn_tf
from returnn_tf.export.meta.graph_builder import GraphBuilder
from tests import processes
from tests.export.meta_session import MetaSession, inputs

DATA = {"data": {"dim": 4}, "classes": {"dim": 5, "sparse": True}}
BLSTM = {
    "fwd": {"class": "rec", "unit": "nativelstm2", "n_out": 6, "direction": 1, "from": "data"},
    "bwd": {"class": "rec", "unit": "nativelstm2", "n_out": 6, "direction": -1, "from": "data"},
    "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": ["fwd", "bwd"]},
}


def config_of(network, **settings):
    return returnn_tf.Config({"extern_data": DATA, "network": network, "behavior_version": 21, **settings})


def meta_of(network, *, train=False, losses=False, search=False, portable=False, **settings):
    """Return the MetaGraphDef of a network."""
    config = config_of(network, **settings)
    plan = returnn_tf.Network.plan(config, train=train is not False, evaluate=losses, search=search)
    builder = GraphBuilder(plan, config, train=train, losses=losses, portable=portable)
    builder.emit_network()
    return builder.meta_graph()


def feed_of(lens=(7, 4), seed=1, dim=4, labels=5):
    rng, lens = np.random.RandomState(seed), np.array(lens, "int32")
    data = rng.normal(0, 1, [len(lens), max(lens), dim]).astype("float32")
    classes = rng.randint(0, labels, [len(lens), max(lens)]).astype("int32")
    return {"data": data, "data/size0": lens, "classes": classes, "classes/size0": lens}


def without_targets(feed):
    return {name: value for name, value in feed.items() if not name.startswith("classes")}


def ops_of(meta):
    return {node.name: node for node in meta.graph_def.node}


def test_names():
    """Inputs, outputs, parameters, saver and side effects are where decoders look for them."""
    meta = meta_of(BLSTM)
    ops = ops_of(meta)
    inputs_of = "extern_data/placeholders/{0}/{0} extern_data/placeholders/{0}/{0}_dim0_size"
    names = [name for key in ("data", "classes") for name in inputs_of.format(key).split()]
    assert [name for name in ops if ops[name].op == "Placeholder"] == names
    names += ["extern_data/placeholders/batch_dim", "post_control_dependencies", "save/restore_all", "global_step"]
    names += [scope + "/output_batch_major" for scope in ("data", "data__classes", "fwd/rec", "bwd/rec", "output")]
    names += ["fwd/rec/W", "output/W/Assign", "output/W/Read/ReadVariableOp", "output/W/read", "save/RestoreV2"]
    assert set(names) <= set(ops)
    assert ops["output/W"].op == "VarHandleOp" and ops["output/W"].attr["shape"].shape.dim[1].size == 5
    assert meta.saver_def.filename_tensor_name == "save/Const:0"
    assert meta.saver_def.save_tensor_name == "save/control_dependency:0"
    assert meta.saver_def.restore_op_name == "save/restore_all"
    assert meta.saver_def.max_to_keep == 2**31 - 1
    without = {node.op for node in ops.values() if "_output_shapes" not in node.attr}
    assert without == {"NoOp", "AssignVariableOp", "SaveV2"}  # which have no outputs
    labels = ops["extern_data/placeholders/classes/classes"].attr
    assert [dim.size for dim in labels["shape"].shape.dim] == [-1, -1] and labels["dtype"].type == 3
    kinds = {name: definition.WhichOneof("kind") for name, definition in meta.collection_def.items()}
    assert kinds == dict.fromkeys(
        ["variables", "trainable_variables", "global_step", "returnn_tf_layer_outputs"], "bytes_list"
    )
    assert len(meta.collection_def["variables"].bytes_list.value) == 9  # with the global step


@pytest.mark.slow
def test_ragged_batch_from_a_checkpoint_of_a_training(tmp_path):
    """The outputs and losses are those of `Network.run`; targets need no feed, padding changes nothing."""
    net = returnn_tf.Network.from_config(config_of(BLSTM))
    trainer = returnn_tf.Trainer(returnn_tf.Network.from_config(config_of(BLSTM), train=True), config_of(BLSTM))
    feed = feed_of()
    trainer.step(feed, learning_rate=0.1)
    path = str(tmp_path / "model" / "net.001")
    returnn_tf.save_checkpoint(trainer.net, path, epoch=1)
    returnn_tf.load_checkpoint(net, path)
    expected = net.run(feed)
    with MetaSession(meta_of(BLSTM, losses=True), path) as session:
        for name, var in net.stored_params.items():
            np.testing.assert_array_equal(session.run([name + "/read"], {})[0], var.numpy())
        assert session.read("global_step:0") == 1
        found, lens = session.run(["output/output_batch_major", "output/output_size0"], inputs(without_targets(feed)))
        layer = expected.layers["output"]
        assert list(lens) == [7, 4]
        for i, n in enumerate(lens):
            np.testing.assert_allclose(found[i, :n], layer.value[i, :n], atol=1e-5)
        loss, error = session.run(["losses/output/loss", "losses/output/error"], inputs(feed))
        np.testing.assert_allclose(loss, expected.losses["output"], rtol=1e-5)
        np.testing.assert_allclose(error, expected.errors["output"], rtol=1e-5)
        single = {"data": feed["data"][1:, :4], "data/size0": feed["data/size0"][1:]}
        (alone,) = session.run(["output/output_batch_major"], inputs(single))
        np.testing.assert_allclose(alone[0], found[1, :4], atol=1e-5)
        session.write("output/b:0", np.arange(5, dtype="float32"))
        assert list(session.read("output/b:0")) == [0, 1, 2, 3, 4]


DIFFERENTIATION = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf

folder = sys.argv[1]
tf.disable_eager_execution()
with open(folder + "/graph.meta", "rb") as file, np.load(folder + "/feed.npz") as feed, tf.Session() as session:
    tf.train.import_meta_graph(tf.MetaGraphDef.FromString(file.read())).restore(session, folder + "/model")
    params = tf.trainable_variables()
    grads = tf.gradients(session.graph.get_tensor_by_name("losses/output/loss:0"), params)
    found = session.run(grads, {name + ":0": feed[name] for name in feed})
    np.savez(folder + "/grads.npz", **{param.op.name: grad for param, grad in zip(params, found)})
"""


@pytest.mark.slow
def test_another_program_differentiates_the_loss(tmp_path):
    """It knows none of the gradients that take the place of TensorFlow's in training."""
    network = {
        **BLSTM,
        "ff": {"class": "linear", "activation": "swish", "n_out": 8, "from": ["fwd", "bwd"]},
        "att": {"class": "self_attention", "num_heads": 2, "total_key_dim": 8, "n_out": 8, "from": "ff"},
        "output": {**BLSTM["output"], "loss_opts": {"label_smoothing": 0.1}, "from": "att"},
    }
    meta = meta_of(network, train=True, losses=True, portable=True)
    (tmp_path / "graph.meta").write_bytes(meta.SerializeToString())
    net, feed = returnn_tf.Network.from_config(config_of(network), train=True), feed_of()
    returnn_tf.save_checkpoint(net, str(tmp_path / "model"), epoch=1)
    np.savez(tmp_path / "feed.npz", **inputs(feed))
    done = processes.run(["-c", DIFFERENTIATION, str(tmp_path)])
    assert done.returncode == 0, done.stderr
    expected = net.run(feed, with_grad=True).grads
    with np.load(tmp_path / "grads.npz") as found:
        assert set(found) == set(expected)
        for name, grad in expected.items():
            np.testing.assert_allclose(found[name], grad, atol=1e-5, err_msg=name)


def test_scopes_of_layer_names():
    """Characters that TensorFlow doesn't allow are replaced; name_scope wins; layers in subnetworks have outputs."""
    linear = {"class": "linear", "activation": None, "n_out": 2}
    meta = meta_of({
        "encoder-output": {**linear, "from": "data"},
        "a:b": {**linear, "from": "encoder-output"},
        "_hidden": {**linear, "from": "a:b"},
        "scoped": {**linear, "from": "_hidden", "name_scope": "/other/place"},
        "sub": {"class": "subnetwork", "from": "scoped", "subnetwork": {
            "inner": {**linear, "from": "data"}, "output": {"class": "copy", "from": "inner"}}},
        "mean": {"class": "reduce", "mode": "mean", "axis": "T", "from": "sub", "is_output_layer": True},
        "loop": {"class": "rec", "from": "sub", "unit": {
            "moved": {**linear, "from": "data:source"},
            "output": {"class": "combine", "kind": "add", "from": ["moved", "prev:output"]}}},
        "output": {**linear, "from": "loop"},
    })  # fmt: skip
    found = {name[: -len("/output_batch_major")] for name in ops_of(meta) if name.endswith("/output_batch_major")}
    assert found == {"data", "data__classes", "encoder__output", "a__b", ".95.hidden", "other/place", "sub",
                     "sub/inner", "sub/output", "loop/rec", "loop/rec/moved", "output"}  # fmt: skip
    listed = [json.loads(text) for text in meta.collection_def["returnn_tf_layer_outputs"].bytes_list.value]
    assert {entry["layer"]: entry["tensor"] for entry in listed}["loop"] == "loop/rec/output_batch_major:0"


def test_layers_of_an_extra_network():
    """They have the scope of the others, which come first."""
    copy = {"class": "copy", "from": "data"}
    meta = meta_of({"in": copy, "l": {"class": "copy", "from": "in"}, "output": {"class": "copy", "from": "l"},
                    "extra.2:in": {"class": "eval", "eval": "source(0) * 0.5", "from": "data"},
                    "o2": {"class": "copy", "from": "extra.2:l", "is_output_layer": True}})  # fmt: skip
    found = {name for name in ops_of(meta) if name.endswith("/output_batch_major")}
    assert {"in/output_batch_major", "extra.2__in/output_batch_major", "extra.2__l/output_batch_major"} <= found


@pytest.mark.parametrize("flag", [False, True])
def test_train_flag_is_fed(flag):
    """The flag selects outputs and updates of running statistics."""
    network = {
        "norm": {"class": "batch_norm", "from": "data", "masked_time": True, "momentum": 0.5},
        "output": {"class": "dropout", "dropout": 0.5, "from": "norm"},
    }
    meta = meta_of(network, train=None)
    mean = next(name for name in ops_of(meta) if name.endswith("mean") and ops_of(meta)[name].op == "VarHandleOp")
    with MetaSession(meta) as session:
        feed = {**inputs(without_targets(feed_of())), "global_tensor_train_flag/train_flag": flag}
        (value,) = session.run(["output/output_batch_major"], feed)
        assert (value == 0).any() == flag
        assert not session.read(mean + ":0").any()  # nothing runs unasked
        session.run([], feed, ["post_control_dependencies"])
        assert session.read(mean + ":0").any() == flag
        assert session.run(["globals/train_flag"], feed)[0] == flag


def test_updates_of_running_statistics_are_for_training():
    """A decoder runs the updates of a graph for inference: they are none."""
    network = {"output": {"class": "batch_norm", "masked_time": True, "from": "data"}}
    assert "update_ops" not in meta_of(network).collection_def
    assert len(meta_of(network, train=True).collection_def["update_ops"].node_list.value) == 2

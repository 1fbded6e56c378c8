"""The networks of blocks: equal to those written by hand, trained, searched, as configs use them."""

from __future__ import annotations

import pathlib
import pickle
from typing import Any

import numpy as np
import pytest

from returnn_tf import blocks
from returnn_tf.cli.main import main
from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config
from returnn_tf.engine.passes.step_trainer import StepTrainer
from tests.parity import ROOT

LENS, LABEL_LENS = np.array([12, 7, 9], "int32"), np.array([3, 1, 2], "int32")
BLSTM: dict[str, Any] = {"layers": 2, "dim": 2, "pooling": (2,), "dropout": 0.0}
TRANSFORMER: dict[str, Any] = {
    "layers": 1, "dim": 4, "heads": 2, "ff_dim": 5, "dropout": 0.0, "scale_embedding": False,
}  # fmt: skip
ATTENTION: dict[str, Any] = {"dim": 4, "attention_dim": 3, "embedding_dim": 3, "beam_size": 3}
TRANSDUCER: dict[str, Any] = {"embedding_dim": 3, "history_dim": 3, "joint_dim": 4, "beam_size": 3}


def config_of(network: Any, num_labels: int = 5, *, words: int = 0, **settings: Any) -> Config:
    """Return a config on vectors of 3 features, or on words."""
    extern_data = {"data": {"dim": words, "sparse": True} if words else {"dim": 3}}
    extern_data["classes"] = {"dim": num_labels, "sparse": True}
    return Config({"extern_data": extern_data, "network": network, "behavior_version": 21, **settings})


def feed(config: Config) -> dict[str, np.ndarray]:
    rng, data = np.random.default_rng(3), config.typed("extern_data")
    dim = data["data"]["dim"]
    x = rng.integers(0, dim, (3, 12)) if data["data"].get("sparse") else rng.normal(size=(3, 12, dim))
    labels = rng.integers(1, data["classes"]["dim"], (3, 3)).astype("int32")
    x = x.astype("float32" if x.dtype.kind == "f" else "int32")
    return {"data": x, "data/size0": LENS, "classes": labels, "classes/size0": LABEL_LENS}


# --- written by hand ---


def with_masks(layers: dict[str, Any]) -> dict[str, Any]:
    """Return a network in which convolutions and pooling see nothing behind a sequence, as those of blocks."""
    own: dict[str, Any] = {"conv": {"use_time_mask": True}, "pool": {"use_time_mask": True}}
    own["merge_dims"] = {"keep_order": False}  # as in the behavior version of the recorded case
    layers = {name: {**layer, **own.get(layer["class"], {})} for name, layer in layers.items()}
    for layer in layers.values():
        if isinstance(layer.get("unit"), dict):
            layer["unit"] = with_masks(layer["unit"])
    return layers


def recorded(name: str) -> dict[str, Any]:
    """Return the network of a recorded case: RETURNN's numbers for it are tested by `test_parity`."""
    config: dict[str, Any] = {}
    exec((ROOT / "models" / (name + ".config")).read_text("utf8"), config)
    return with_masks(config["network"])


def conformer() -> Any:
    front = {"dim": 4, "heads": 2, "ff_dim": 6, "kernel": 3, "max_distance": 3, "norm": "layer_norm", "dropout": 0.0}
    net = blocks.conformer("enc", layers=1, **front)
    net["output"] = {"class": "softmax", "from": "enc", "target": "classes", "loss": "ce"}
    own = "enc_1_"
    return net, {
        "ff1_ln": own + "ff1_norm", "ff1_a": own + "ff1_hidden", "ff1_b": own + "ff1_out",
        "sa_ln": own + "att_norm", "rpe": own + "att_positions", "sa": own + "att_heads", "sa_l": own + "att_out",
        "c_ln": own + "conv_norm", "c_p1": own + "conv_in", "c_dw": own + "conv_depthwise",
        "c_bn": own + "conv_depthwise_norm", "c_p2": own + "conv_out", "ff2_ln": own + "ff2_norm",
        "ff2_a": own + "ff2_hidden", "ff2_b": own + "ff2_out", "enc": "enc_1", "in": "enc_in",
    }  # fmt: skip


_LSTMS = {
    "lstm0_fw": "enc_1_fwd", "lstm0_bw": "enc_1_bwd", "lstm1_fw": "enc_2_fwd", "lstm1_bw": "enc_2_bwd",
}  # fmt: skip


def in_loop(names: dict[str, str]) -> dict[str, str]:
    return {"output/rec/" + one: "output/rec/" + other for one, other in names.items()}


def attention() -> Any:
    options = {"end": 0, "append_end": False, "dropout": 0.0, "label_smoothing": 0.0, **ATTENTION}
    decoder = blocks.attention_decoder("output", encoder="enc", num_labels=5, **options)
    inner = {
        "emb": "embedding", "wf": "feedback", "str": "query", "e": "energy", "s": "state", "roi": "readout_in",
        "p": "prob",
    }  # fmt: skip
    outer = {**_LSTMS, "enc_ctx": "output_keys", "inv": "output_fertility"}
    return {**blocks.blstm("enc", **BLSTM), **decoder}, {**outer, **in_loop(inner)}


def transformer() -> Any:
    options = {"end": 0, "append_end": False, "beam_size": 3, **TRANSFORMER}
    net = blocks.transformer_encoder("enc", **TRANSFORMER)
    decoder = blocks.transformer_decoder("output", encoder="enc", num_labels=5, max_len=(2, 0), **options)
    inner = {
        "t_emb": "block0_embedding", "d0_ln": "block1_att_norm", "d0_sa": "block1_att_heads", "d0_sl": "block1_att_out",
        "d0_aln": "block1_cross_norm", "d0_q0": "block1_cross_query_all", "d0_al": "block1_cross_out",
        "d0_fln": "block1_ff_norm", "d0_f1": "block1_ff_hidden", "d0_f2": "block1_ff_out", "dec": "decoder",
        "p": "prob",
    }  # fmt: skip
    outer = {
        "emb": "enc_0_embedding", "e0_ln": "enc_1_att_norm", "e0_sa": "enc_1_att_heads", "e0_sl": "enc_1_att_out",
        "e0_fln": "enc_1_ff_norm", "e0_f1": "enc_1_ff_hidden", "e0_f2": "enc_1_ff_out",
        "d0_k0": "output_block1_cross_key_all", "d0_v0": "output_block1_cross_value_all",
    }  # fmt: skip
    return {**net, **decoder}, {**outer, **in_loop(inner)}


def pooled_ctc() -> Any:
    return {**blocks.blstm("enc", **BLSTM), **blocks.ctc("output", source="enc")}, _LSTMS


EQUAL: dict[str, Any] = {
    "conformer_rel": (conformer, ""),
    "asr_att_train": (attention, "dec"),
    "trafo1_train": (transformer, "decision"),
    "blstm_pool_ctc": (pooled_ctc, ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUAL)
def test_equal_to_a_network_written_by_hand(name: str) -> None:
    """The same parameters, losses, and best hypotheses with their scores."""
    make, decision = EQUAL[name]
    (net, scopes), by_hand = make(), recorded(name)
    if name == "asr_att_train":  # there the vector before the first label is 0, here that of the label "start"
        unit = by_hand["output"]["unit"]
        unit["emb"]["from"] = "prev:output"
        unit["s"]["from"], unit["roi"]["from"] = ["emb", "prev:att"], ["s", "emb", "att"]
    words = 6 if name == "trafo1_train" else 0
    hand, block = config_of(by_hand, words=words), config_of(net, words=words)
    data = feed(block)
    if name == "conformer_rel":  # a label for each frame
        data.update({"classes": np.ones((3, 12), "int32"), "classes/size0": LENS})

    def of_block(path: str) -> str:
        scope = max((scope for scope in scopes if path.startswith(scope + "/")), key=len, default=None)
        return path if scope is None else scopes[scope] + path[len(scope) :]

    one, other = (Network.from_config(config, train=True) for config in (hand, block))
    rng = np.random.default_rng(5)
    values = {path: rng.normal(size=value.shape, scale=0.5) for path, value in one.get_param_values().items()}
    given = {of_block(path): value for path, value in values.items()}
    shapes = {path: value.shape for path, value in other.get_param_values().items()}
    assert shapes == {path: value.shape for path, value in given.items()}
    one.set_param_values(values)
    other.set_param_values(given)
    losses = [[float(loss) for loss in network.run(data).losses.values()] for network in (one, other)]
    assert losses[0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    if decision:
        found = []
        for config, params, layer in ((hand, values, decision), (block, given, "output_decision")):
            network = Network.from_config(config, search=True)
            network.set_param_values(params)
            found.append(network.run(data).layers[layer])
        np.testing.assert_array_equal(found[0].value, found[1].value)
        np.testing.assert_allclose(found[0].beam_scores, found[1].beam_scores, rtol=1e-4)


# --- each of them ---


def whole(name: str, **options: Any) -> dict[str, Any]:
    """Return a small network with a block, with an output where the block has none."""
    small: dict[str, dict[str, Any]] = {
        "blstm": BLSTM,
        "vgg": {"channels": (3, 4)},
        "conformer": {"layers": 2, "dim": 4, "heads": 2, "kernel": 3},
        "transformer_encoder": TRANSFORMER,
        "ctc": {},
        "transducer": {**TRANSDUCER, "num_labels": 5},
        "attention_decoder": {**ATTENTION, "num_labels": 5},
        "transformer_decoder": {**TRANSFORMER, "num_labels": 5, "beam_size": 3},
    }
    make = getattr(blocks, name)
    options = {**small[name], **options}
    if name in ("blstm", "vgg", "conformer", "transformer_encoder"):
        return {**make("enc", **options), **blocks.ctc("output", source="enc")}
    source = {"source": "enc"} if name == "ctc" else {"encoder": "enc"}
    return {**blocks.blstm("enc", **BLSTM), **make("output", **source, **options)}


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("blstm", {}),
    ("blstm", {"layers": 1, "pooling": (2, 1, 2), "dropout": 0.2, "L2": 0.01, "unit": "lstmp"}),
    ("vgg", {}),
    ("vgg", {"pooling": False, "convs": 1, "reduce": [(2, 2), (1, 2)]}),
    ("vgg", {"channels": [4], "reduce": [(1, 1)], "activation": "swish", "filter_size": 1}),
    ("conformer", {}),
    ("conformer", {"norm": "layer_norm", "max_distance": None, "ff_dim": 3}),
    ("transformer_encoder", {}),
    ("transformer_encoder", {"positions": False, "scale_embedding": True, "dropout": 0.1, "activation": "gelu"}),
    ("ctc", {}),
    ("ctc", {"scale": 0.5, "dropout": 0.2}),
    ("transducer", {}),
    ("transducer", {"scale": 0.3, "dropout": 0.0, "unit": "lstm"}),
    ("attention_decoder", {}),
    ("attention_decoder", {"fertility": False, "zoneout": (0.1, 0.1), "end": 0, "start": 1}),
    ("transformer_decoder", {}),
    ("transformer_decoder", {"layers": 2, "heads": 2, "end": 0, "positions": False, "label_smoothing": 0.0}),
]


@pytest.mark.slow
@pytest.mark.parametrize("name,options", VARIANTS, ids=str)
def test_trains_and_searches(name: str, options: Any) -> None:
    """Steps of training change each parameter and lower the loss; the search finds labels of the target."""
    config = config_of(whole(name, **options), learning_rate=0.03, optimizer={"class": "adam"})
    net, data = Network.from_config(config, train=True), feed(config)
    before = net.get_param_values()
    trainer = StepTrainer(net, config)
    losses = [trainer.step(data).total_loss for _ in range(6)]
    after = net.get_param_values()
    assert [path for path in net.trainable_params if np.array_equal(before[path], after[path])] == []
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    search = Network.from_config(config, search=True)
    search.set_param_values(after)
    decision = search.run(data).layers["output_decision"]
    assert decision.axes == ("B", "T")
    found = decision.value[np.arange(decision.value.shape[1]) < decision.sizes[1][:, None]]
    labels = 6 if name.endswith("decoder") and options.get("end") is None else 5  # the end is another one
    assert ((found >= 0) & (found < labels)).all()


ENCODERS = [pair for pair in VARIANTS if pair[0] in ("blstm", "vgg", "conformer", "transformer_encoder")]


@pytest.mark.slow
@pytest.mark.parametrize("name,options", ENCODERS, ids=str)
def test_a_sequence_alone(name: str, options: Any) -> None:
    """Its output does not depend on the others of the batch: blocks see nothing behind the end of a sequence."""
    config = config_of(whole(name, **options))
    net, data = Network.from_config(config), feed(config)
    together = net.run(data).layers["output"].value
    for row, length in enumerate(LENS):
        one = {key: value[row : row + 1] for key, value in data.items()}
        alone = net.run({**one, "data": one["data"][:, :length]}).layers["output"].value[0]
        np.testing.assert_allclose(together[row, : len(alone)], alone, rtol=1e-4, atol=1e-5)


LANGUAGE_MODELS: list[tuple[str, dict[str, Any]]] = [
    ("lstm_language_model", {"layers": 2, "dim": 4, "embedding_dim": 3}),
    ("lstm_language_model", {"layers": 1, "dim": 4, "dropout": 0.2, "unit": "lstm"}),
    ("transformer_language_model", {"layers": 2, "dim": 4, "heads": 2}),
    ("transformer_language_model", {"layers": 1, "dim": 4, "heads": 1, "ff_dim": 3, "positions": False}),
]


@pytest.mark.slow
@pytest.mark.parametrize("name,options", LANGUAGE_MODELS, ids=str)
def test_a_language_model_trains_and_scores_hypotheses(name: str, options: Any) -> None:
    """Training lowers the loss; in the loop of a search, the same parameters give the same scores."""
    make = getattr(blocks, name)
    labels = {"dim": 5, "sparse": True}
    settings = {"extern_data": {"delayed": labels, "classes": labels}, "behavior_version": 21}
    network = make("output", source="data:delayed", target="classes", **options)
    config = Config({**settings, "network": network, "learning_rate": 0.03, "optimizer": {"class": "adam"}})
    net = Network.from_config(config, train=True)
    before = net.get_param_values()
    rng = np.random.default_rng(3)
    text = rng.integers(1, 5, (3, 6)).astype("int32")
    delayed = np.concatenate([np.zeros((3, 1), "int32"), text[:, :-1]], axis=1)
    sizes = {"classes/size0": np.array([6, 4, 5], "int32"), "delayed/size0": np.array([6, 4, 5], "int32")}
    trainer = StepTrainer(net, config)
    losses = [trainer.step({"delayed": delayed, "classes": text, **sizes}).total_loss for _ in range(6)]
    after = net.get_param_values()
    assert [path for path in net.trainable_params if np.array_equal(before[path], after[path])] == []
    assert np.isfinite(losses).all() and losses[-1] < losses[0]

    inner = make("output", source="data", num_labels=5, **options)
    unit = {
        "lm": {"class": "subnetwork", "from": "prev:output", "subnetwork": inner},
        "output": {
            "class": "choice", "target": "classes", "beam_size": 3, "from": "lm", "initial_output": 0,
            "length_normalization": False,
        },
        "end": {"class": "compare", "value": 0, "from": "output"},
    }  # fmt: skip
    loop = {
        "output": {"class": "rec", "from": [], "target": "classes", "max_seq_len": 5, "unit": unit},
        "decision": {"class": "decide", "from": "output", "loss": "edit_distance", "target": "classes"},
    }
    search = Network.from_config(Config({**settings, "network": loop}), search=True)
    search.set_param_values({"output/rec/lm/" + path: value for path, value in after.items()})
    decision = search.run({"classes": text, **sizes}).layers["decision"]
    scorer = Network.from_config(config)
    scorer.set_param_values(after)
    for found, length, score in zip(decision.value, decision.sizes[1], np.reshape(decision.beam_scores, (-1,))):
        words = [0, *found[:length], 0][: 5 + 1]  # the loop ends after 5 labels
        given = {"delayed": np.array([words[:-1]], "int32"), "delayed/size0": np.array([len(words) - 1], "int32")}
        given.update({"classes": np.array([words[1:]], "int32"), "classes/size0": given["delayed/size0"]})
        probs = scorer.run(given).layers["output"].value[0]
        np.testing.assert_allclose(np.log(probs[np.arange(len(words) - 1), words[1:]]).sum(), score, rtol=1e-4)


#: Millions of parameters of the defaults, from what the papers say.
PAPERS: dict[str, tuple[Any, float]] = {
    # 118.8 of the large transducer, without subsampling (7.6), positions (4.5) and decoder (3.7)
    "conformer": (lambda: blocks.conformer("enc", max_distance=None), 103.0),
    # 65 of the base model, with a matrix of 37000 words, where there are three here
    "transformer": (
        lambda: {
            **blocks.transformer_encoder("enc"),
            **blocks.transformer_decoder("output", encoder="enc", num_labels=37000, end=0),
        },
        65 + 2 * 37000 * 512 / 1e6,
    ),
    # six layers of 2 x 512 cells, the first one on 3 features
    "blstm": (lambda: blocks.blstm("enc"), (6 * 8 * 512 * (1024 + 512 + 1) - 8 * 512 * 1021) / 1e6),
}


@pytest.mark.parametrize("name", PAPERS)
def test_sizes_of_the_papers(name: str) -> None:
    make, expected = PAPERS[name]
    is_whole = name == "transformer"
    net = make() if is_whole else {**make(), "output": {"class": "copy", "from": "enc"}}
    words = {"words": 37000, "num_labels": 37000} if is_whole else {}
    plan = plan_from_config(config_of(net, **words), train=is_whole)
    size = sum(np.prod(param.shape) for param in plan.params.values()) / 1e6
    assert size == pytest.approx(expected, rel=0.02 if is_whole else 0.005)


def test_the_same_number_of_frames_with_fewer_layers() -> None:
    """As pretraining needs: the last layer pools as much as those that are missing."""
    for layers in (1, 2, 3, 6):
        net = blocks.blstm("enc", layers=layers, pooling=(3, 2))
        assert np.prod([layer["pool_size"] for layer in net.values() if layer["class"] == "pool"]) == 6


def test_a_config_of_blocks(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """It is run from the command line; layers of a block can be changed and added."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.config").write_text(
        "from returnn_tf import blocks\n"
        "from returnn_tf.blocks import ctc\n"
        "extern_data = {'data': {'dim': 9}, 'classes': {'dim': 2, 'sparse': True}}\n"
        "network = {**blocks.blstm('enc', layers=1, dim=4, pooling=(4,)), **ctc('output', source='enc')}\n"
        "network['enc_1_fwd']['L2'] = 0.001\n"
        "train = {'class': 'Task12AXDataset', 'num_seqs': 4}\n"
        "num_epochs, batch_size, learning_rate, model = 1, 1000, 0.01, 'out/net'\n"
        "optimizer = {'class': 'adam'}\n"
    )
    assert main(["my.config"]) == 0
    assert "epoch 1 score" in capsys.readouterr().out


def test_plain_data() -> None:
    """What blocks return can be pickled, compared, and written to another config."""
    for name, options in VARIANTS:
        net = whole(name, **options)
        assert pickle.loads(pickle.dumps(net)) == net == eval(repr(net)) == whole(name, **options)
    for name, options in LANGUAGE_MODELS:
        net = getattr(blocks, name)("lm", source="data", num_labels=5, **options)
        assert pickle.loads(pickle.dumps(net)) == net == eval(repr(net))

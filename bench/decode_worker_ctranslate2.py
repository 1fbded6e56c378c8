"""Beam search with a Transformer in CTranslate2: a worker of bench/decode_peers.py, for its own Python."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec
from workers import serve

Params = Mapping[str, np.ndarray]


def fill_linear(spec: Any, *matrices: np.ndarray, bias: Optional[np.ndarray] = None) -> None:
    """Set matrices [inputs, outputs] side by side, and the bias."""
    spec.weight = np.ascontiguousarray(np.concatenate(matrices, axis=1).T)
    if bias is not None:
        spec.bias = bias


def fill_norm(spec: Any, params: Params, name: str) -> None:
    """Set the parameters of a layer norm."""
    spec.gamma, spec.beta = params[name + "/scale"], params[name + "/bias"]


def fill_self_attention(spec: Any, params: Params, name: str, heads: int) -> None:
    """Set those of self-attention; `name` has the place of the part of a name."""
    fill_norm(spec.layer_norm, params, name % "self_norm")
    qkv = params[name % "self_att" + "/QKV"]
    dim = len(qkv)
    by_head = qkv.reshape(dim, heads, 3, dim // heads)
    fill_linear(spec.linear[0], by_head.transpose(0, 2, 1, 3).reshape(dim, 3 * dim))
    fill_linear(spec.linear[1], params[name % "self_out" + "/W"])


def fill_feed_forward(spec: Any, params: Params, name: str) -> None:
    """Set those of a feed-forward part."""
    fill_norm(spec.layer_norm, params, name % "ff_norm")
    for linear, part in ((spec.linear_0, "ff_hidden"), (spec.linear_1, "ff_out")):
        fill_linear(linear, params[name % part + "/W"], bias=params[name % part + "/b"])


def save_model(folder: str, params: Params, *, layers: int, heads: int, epsilon: float, names: Sequence[str]) -> None:
    """Write the parameters of the network of bench/decode_peers.py as a model in float32.

    :param names: of the labels; the first one begins and ends a sentence
    """
    spec = TransformerSpec.from_config((1, layers), heads)
    for stack in (spec.encoder, spec.decoder):
        stack.scale_embeddings = False
        stack.position_encodings.encodings = params["positions"]
    spec.encoder.embeddings[0].weight = params["source_raw/W"]
    spec.decoder.embeddings.weight = params["output/rec/embed_raw/W"]
    fill_norm(spec.encoder.layer_norm, params, "encoder")
    fill_norm(spec.decoder.layer_norm, params, "output/rec/decoder")
    fill_self_attention(spec.encoder.layer[0].self_attention, params, "source_%s", heads)
    fill_feed_forward(spec.encoder.layer[0].ffn, params, "source_%s")
    for i, layer in enumerate(spec.decoder.layer, start=1):
        name = "output/rec/%s" + str(i)
        fill_self_attention(layer.self_attention, params, name, heads)
        fill_norm(layer.attention.layer_norm, params, name % "cross_norm")
        fill_linear(layer.attention.linear[0], params[name % "query_flat" + "/W"])
        fill_linear(layer.attention.linear[1], params["key%d_flat/W" % i], params["value%d_flat/W" % i])
        fill_linear(layer.attention.linear[2], params[name % "cross_out" + "/W"])
        fill_feed_forward(layer.ffn, params, name)
    fill_linear(spec.decoder.projection, params["output/rec/prob/W"], bias=params["output/rec/prob/b"])
    spec.config.layer_norm_epsilon = epsilon
    for token, label in (("decoder_start_token", 0), ("bos_token", 0), ("eos_token", 0), ("unk_token", 1)):
        spec.config.add_attribute(token, names[label])
    spec.register_source_vocabulary(list(names))
    spec.register_target_vocabulary(list(names))
    spec.validate()
    spec.save(folder)


def searching(asked: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return a search for each number of sentences and size of the beam; it returns the best labels.

    :param asked: see `decode_peers.asked_of`
    """
    names = ["label%d" % i for i in range(asked["labels"])]
    with tempfile.TemporaryDirectory() as folder, np.load(asked["params"]) as params:
        save_model(folder, params, names=names, **asked["model"])
        translator = ctranslate2.Translator(
            folder, compute_type=asked["dtype"], inter_threads=1, intra_threads=asked["threads"]
        )

    def search(batch: int, beam: int) -> Callable[[], Any]:
        source = [[names[label] for label in labels] for labels in asked["sentences"][str(batch)]]

        def run() -> Any:
            found = translator.translate_batch(
                source,
                beam_size=beam,
                min_decoding_length=asked["steps"],  # no hypothesis ends before
                max_decoding_length=asked["steps"],
            )
            return [[int(name[len("label") :]) for name in sentence.hypotheses[0]] for sentence in found]

        return run

    return {"%d,%d" % point: search(*point) for point in map(tuple, asked["points"])}


if __name__ == "__main__":
    serve(lambda: searching(json.loads(sys.argv[1])), warm_up=False)

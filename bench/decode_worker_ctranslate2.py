"""Beam search with a Transformer decoder in CTranslate2: a worker of bench/decode_peers.py, for its own Python.

The decoder has the sizes of bench/transformer_search.py, and random parameters of the same spread. The encoder, which
cannot be left out, is a layer with a small feed-forward part: over 100 labels it does 1 % of the products.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any, Callable

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec
from workers import serve

RNG = np.random.RandomState(1)
ENCODER_HIDDEN = 8


def fill_linear(spec: Any, inputs: int, outputs: int, *, bias: bool = False) -> None:
    """Set the matrix of a layer, and zeros as its bias."""
    spec.weight = RNG.normal(0, inputs**-0.5, (outputs, inputs)).astype("float32")
    if bias:
        spec.bias = np.zeros(outputs, "float32")


def fill_norm(spec: Any, size: int) -> None:
    """Set the parameters of a layer norm to what changes nothing."""
    spec.gamma, spec.beta = np.ones(size, "float32"), np.zeros(size, "float32")


def save_model(folder: str, *, layers: int, dim: int, heads: int, hidden: int, labels: int) -> None:
    """Write a model in float32."""
    spec = TransformerSpec.from_config((1, layers), heads)
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = False
    fill_linear(spec.encoder.embeddings[0], dim, labels)
    fill_linear(spec.decoder.embeddings, dim, labels)
    for layers_of, units in ((spec.encoder, ENCODER_HIDDEN), (spec.decoder, hidden)):
        fill_norm(layers_of.layer_norm, dim)
        for layer in layers_of.layer:
            fill_norm(layer.self_attention.layer_norm, dim)
            fill_linear(layer.self_attention.linear[0], dim, 3 * dim)
            fill_linear(layer.self_attention.linear[1], dim, dim)
            fill_norm(layer.ffn.layer_norm, dim)
            fill_linear(layer.ffn.linear_0, dim, units, bias=True)
            fill_linear(layer.ffn.linear_1, units, dim, bias=True)
    for layer in spec.decoder.layer:
        fill_norm(layer.attention.layer_norm, dim)
        fill_linear(layer.attention.linear[0], dim, dim)
        fill_linear(layer.attention.linear[1], dim, 2 * dim)
        fill_linear(layer.attention.linear[2], dim, dim)
    fill_linear(spec.decoder.projection, dim, labels, bias=True)
    spec.decoder.projection.weight *= 3.0  # about as sure of its labels as a trained model
    names = ["<unk>", "<s>", "</s>"] + ["label%d" % i for i in range(labels - 3)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.validate()
    spec.save(folder)


def searching(asked: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return a search for each number of sentences and size of the beam; it returns the number of labels.

    :param asked: sizes, see `decode_peers.sizes`
    """
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, **asked["model"])
        translator = ctranslate2.Translator(
            folder, compute_type=asked["dtype"], inter_threads=1, intra_threads=asked["threads"]
        )

    def search(batch: int, beam: int) -> Callable[[], int]:
        lengths = np.linspace(asked["frames"] * 2 // 3, asked["frames"], batch).astype(int)
        source = [["label%d" % i for i in RNG.randint(0, 1000, length)] for length in lengths]

        def run() -> int:
            found = translator.translate_batch(
                source,
                beam_size=beam,
                min_decoding_length=asked["steps"],  # no hypothesis ends before
                max_decoding_length=asked["steps"],
            )
            return sum(len(sentence.hypotheses[0]) for sentence in found)

        return run

    return {"%d,%d" % point: search(*point) for point in map(tuple, asked["points"])}


if __name__ == "__main__":
    serve(lambda: searching(json.loads(sys.argv[1])), warm_up=False)

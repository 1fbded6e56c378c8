"""Encoders: `vgg`, `blstm`, `conformer`, `transformer_encoder`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.blocks.block import (
    Layers,
    MaybeSize,
    Rate,
    Size,
    Source,
    added,
    block,
    check_heads,
    dropped,
    linear,
    per_sequence,
)
from returnn_tf.blocks.transformer import embedded, feed_forward, self_attention
from returnn_tf.config.errors import OptionError


@block
def vgg(
    name: str,
    *,
    source: Source = "data",
    channels: Sequence[int] = (64, 128),
    convs: Size = 2,
    reduce: Sequence[tuple[int, int]] = ((2, 2), (2, 2)),
    filter_size: Size = 3,
    pooling: bool = True,
    activation: str = "relu",
) -> Layers:
    """Return convolutions over time and features, which make the sequence shorter.

    The defaults are those of Hori et al. 2017 (arXiv:1706.02737): two groups of two convolutions and max-pooling, a
    frame for every four. The convolutional subsampling of the Conformer: ``channels=(32, 32), convs=1, pooling=False``.

    :param source: layer with a vector for each frame
    :param channels: of the convolutions of each group
    :param convs: convolutions in a group
    :param reduce: for each group, by which factors it makes time and features shorter
    :param filter_size: frames and features that a convolution sees
    :param pooling: make them shorter by max-pooling behind a group; False: by strides of its last convolution
    :param activation: of the convolutions
    """
    if len(channels) != len(reduce) or not channels:
        sizes = (len(channels), len(reduce))
        raise OptionError("channels has %d entries, reduce has %d. Give one of each for each group." % sizes)
    if min(*channels, *(factor for pair in reduce for factor in pair)) < 1:
        raise OptionError("channels and reduce must hold numbers of at least 1.")
    net: Layers = {name + "_image": {"class": "split_dims", "axis": "F", "dims": (-1, 1), "from": source}}
    last = name + "_image"
    # "same_static" places the filters alike in all sequences; frames behind the end of a sequence count as 0.
    frames = {"padding": "same_static", "use_time_mask": True}
    for group, (n_out, factors) in enumerate(zip(channels, reduce), 1):
        for i in range(1, convs + 1):
            conv = "%s_conv%d_%d" % (name, group, i)
            net[conv] = {
                "class": "conv", "n_out": n_out, "filter_size": (filter_size, filter_size), "activation": activation,
                "with_bias": True, **frames, "from": last,
            }  # fmt: skip
            last = conv
        if tuple(factors) == (1, 1):
            continue
        if pooling:
            last = "%s_pool%d" % (name, group)
            net[last] = {"class": "pool", "mode": "max", "pool_size": tuple(factors), **frames, "from": conv}
        else:
            net[conv]["strides"] = tuple(factors)
    net[name] = {"class": "merge_dims", "axes": "static", "keep_order": False, "from": last}
    return net


@block
def blstm(
    name: str,
    *,
    source: Source = "data",
    layers: Size = 6,
    dim: Size = 512,
    pooling: Sequence[int] = (),
    dropout: Rate = 0.1,
    L2: Optional[float] = None,
    unit: str = "nativelstm2",
) -> Layers:
    """Return bidirectional LSTMs, with max-pooling over time between them if ``pooling`` says so.

    The defaults are those of acoustic models (Zeyer et al. 2017, arXiv:1606.06871). Encoders for attention have
    ``dim=1024, pooling=(3, 2), dropout=0.3`` (Zeyer et al. 2018, arXiv:1805.03294). Dropout is on the input of each
    layer but the first, and on the output; a sequence drops the same features in all frames.

    :param source: layer with a vector for each frame
    :param layers: their number; layer i is called ``<name>_<i>``
    :param dim: cells in each direction; the output has twice as many features
    :param pooling: factor by which each layer makes the sequence shorter, if not 1. The last layer takes all that are
        left, so that with few layers, as in pretraining, the frames are as many as with all
    :param dropout: on inputs of layers and on the output
    :param L2: weight of the L2 constraint on all parameters
    :param unit: of ``rec``
    """
    if any(factor < 1 for factor in pooling):
        raise OptionError("pooling must hold numbers of at least 1, got %s." % (tuple(pooling),))
    net: Layers = {}
    last: Source = source
    for i in range(1, layers + 1):
        lstm: Layers = {"class": "rec", "unit": unit, "n_out": dim, "from": last}
        lstm.update(per_sequence(dropout) if i > 1 else {})
        lstm.update({} if L2 is None else {"L2": L2})
        last = "%s_%d" % (name, i)
        both = [last + "_fwd", last + "_bwd"]
        net[both[0]], net[both[1]] = {**lstm, "direction": 1}, {**lstm, "direction": -1}
        factor = math.prod(pooling[i - 1 : i] if i < layers else pooling[i - 1 :])
        if factor == 1:
            net[last] = {"class": "copy", "from": both}
        else:
            net[last] = {
                "class": "pool", "mode": "max", "pool_size": (factor,), "padding": "same_static", "use_time_mask": True,
                "from": both,
            }  # fmt: skip
    net[name] = {"class": "copy", **per_sequence(dropout), "from": last}
    return net


@block
def conformer(
    name: str,
    *,
    source: Source = "data",
    layers: Size = 17,
    dim: Size = 512,
    heads: Size = 8,
    ff_dim: MaybeSize = None,
    kernel: Size = 31,
    max_distance: MaybeSize = 64,
    norm: str = "batch_norm",
    dropout: Rate = 0.1,
) -> Layers:
    """Return Conformer blocks behind a linear layer (Gulati et al. 2020, arXiv:2005.08100).

    A block: half a feed-forward part, self-attention, convolution, half a feed-forward part, layer normalisation. The
    defaults are the large model of the paper, but for two things: the kernel is odd (32 there), and positions are
    learned vectors for distances up to ``max_distance`` (Shaw et al. 2018, arXiv:1803.02155), not sines. The source
    should have a frame every 40 ms: put `vgg` in front.

    :param source: layer with a vector for each frame
    :param layers: number of blocks; block i is called ``<name>_<i>``
    :param dim: features of all blocks
    :param heads: of the self-attention
    :param ff_dim: inner features of the feed-forward parts; default: 4 dim
    :param kernel: frames that a convolution sees
    :param max_distance: distance from which on positions are not told apart; None: no positions
    :param norm: of the convolution: batch_norm, or layer_norm, the same in training and recognition
    :param dropout: on all parts, and on attention weights
    """
    check_heads(dim, heads)
    if norm not in ("batch_norm", "layer_norm"):
        raise OptionError("norm is %r. It is batch_norm or layer_norm." % norm)
    net: Layers = {name + "_in": linear(source, dim), name + "_0": dropped(name + "_in", dropout)}
    half: Layers = {"dim": dim, "ff_dim": ff_dim or 4 * dim, "activation": "swish", "dropout": dropout, "scale": 0.5}
    for i in range(1, layers + 1):
        last, own = "%s_%d" % (name, i - 1), "%s_%d" % (name, i)
        positions = {}
        if max_distance is not None:
            net[own + "_att_positions"] = {
                "class": "relative_positional_encoding", "n_out": dim // heads, "clipping": max_distance,
                "from": own + "_att_norm",
            }  # fmt: skip
            positions = {"key_shift": own + "_att_positions"}
        net.update(feed_forward(own + "_ff1", last, **half))
        net.update(self_attention(own + "_att", own + "_ff1", dim=dim, heads=heads, dropout=dropout, **positions))
        net.update(_convolution(own + "_conv", own + "_att", dim, kernel, norm, dropout))
        net.update(feed_forward(own + "_ff2", own + "_conv", **half))
        net[own] = {"class": "layer_norm", "from": own + "_ff2"}
    net[name] = {"class": "copy", "from": "%s_%d" % (name, layers)}
    return net


def _convolution(name: str, source: str, dim: int, kernel: int, norm: str, dropout: float) -> Layers:
    """Return the convolution part of a Conformer block."""
    norms: dict[str, Layers] = {"layer_norm": {}, "batch_norm": {"masked_time": True}}
    return {
        name + "_norm": {"class": "layer_norm", "from": source},
        name + "_in": linear(name + "_norm", 2 * dim),
        name + "_gate": {"class": "gating", "activation": "identity", "from": name + "_in"},
        name + "_depthwise": {
            "class": "conv", "n_out": dim, "groups": dim, "filter_size": (kernel,), "padding": "same",
            "activation": None, "use_time_mask": True, "with_bias": True, "from": name + "_gate",
        },
        name + "_depthwise_norm": {"class": norm, **norms[norm], "from": name + "_depthwise"},
        name + "_swish": {"class": "activation", "activation": "swish", "from": name + "_depthwise_norm"},
        name + "_out": linear(name + "_swish", dim),
        name + "_drop": dropped(name + "_out", dropout),
        name: added(source, name + "_drop"),
    }  # fmt: skip


@block
def transformer_encoder(
    name: str,
    *,
    source: Source = "data",
    layers: Size = 6,
    dim: Size = 512,
    heads: Size = 8,
    ff_dim: MaybeSize = None,
    activation: str = "relu",
    positions: bool = True,
    scale_embedding: bool = True,
    dropout: Rate = 0.1,
    init: Any = "glorot_uniform",
) -> Layers:
    """Return embedding, positions, and blocks of self-attention and feed-forward parts.

    Vaswani et al. 2017 (arXiv:1706.03762), the base model, but for layer normalisation: in front of each part, and at
    the end once, which trains without a long warm-up (Xiong et al. 2020, arXiv:2002.04745).

    :param source: layer with labels, or with a vector for each frame
    :param layers: number of blocks; block i is called ``<name>_<i>``
    :param dim: features of all blocks
    :param heads: of the self-attention
    :param ff_dim: inner features of the feed-forward parts; default: 4 dim
    :param activation: of the feed-forward parts
    :param positions: add sines of the position to the embedding
    :param scale_embedding: multiply the embedding by the root of dim before
    :param dropout: on the embedding, all parts, and attention weights
    :param init: initialiser of all matrices
    """
    check_heads(dim, heads)
    net = embedded(name + "_0", source, dim=dim, positions=positions, scale=scale_embedding, dropout=dropout, init=init)
    for i in range(1, layers + 1):
        own = "%s_%d" % (name, i)
        last = "%s_%d" % (name, i - 1)
        net.update(self_attention(own + "_att", last, dim=dim, heads=heads, dropout=dropout, init=init))
        inner: Layers = {"dim": dim, "ff_dim": ff_dim or 4 * dim, "activation": activation, "dropout": dropout}
        net.update(feed_forward(own, own + "_att", init=init, parts=own + "_ff", **inner))
    net[name] = {"class": "layer_norm", "from": "%s_%d" % (name, layers)}
    return net

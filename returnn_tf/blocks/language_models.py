"""Language models: `lstm_language_model`, `transformer_language_model`."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.blocks.block import Layers, MaybeSize, Rate, Size, block, check_heads, linear
from returnn_tf.blocks.transformer import embedded, feed_forward, self_attention
from returnn_tf.config.errors import OptionError


@block
def lstm_language_model(
    name: str,
    *,
    source: str,
    target: Optional[str] = None,
    num_labels: MaybeSize = None,
    layers: Size = 2,
    dim: Size = 2048,
    embedding_dim: Size = 512,
    dropout: Rate = 0.1,
    unit: str = "nativelstm2",
) -> Layers:
    """Return the probabilities of the label after each label, by LSTMs (Sundermeyer et al. 2012).

    With a target it is trained. With num_labels it is for a search: as the network of a ``subnetwork`` in the loop of a
    decoder, whose source is the label before, it has the same parameters.

    :param source: layer with the labels; in training the target, delayed by the label of the start
    :param target: data key of the labels to predict; None: no loss
    :param num_labels: where there is no target: how many labels there are
    :param layers: number of LSTMs; LSTM i is called ``<name>_<i>``
    :param dim: cells of each LSTM
    :param embedding_dim: features of a label
    :param dropout: on the input of the LSTMs and of the output
    :param unit: of ``rec``
    """
    last = name + "_embedding"
    net: Layers = {last: linear(source, embedding_dim, with_bias=False)}
    for i in range(1, layers + 1):
        own = "%s_%d" % (name, i)
        net[own] = {"class": "rec", "unit": unit, "n_out": dim, "dropout": dropout, "from": last}
        last = own
    net[name] = {**_output(last, target, num_labels), "dropout": dropout}
    return net


@block
def transformer_language_model(
    name: str,
    *,
    source: str,
    target: Optional[str] = None,
    num_labels: MaybeSize = None,
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
    """Return the probabilities of the label after each label, by self-attention to the labels so far.

    It is the decoder of `transformer_decoder` without an encoder (Irie et al. 2019, arXiv:1905.04226). With a target it
    is trained. With num_labels it is for a search: as the network of a ``subnetwork`` in the loop of a decoder, whose
    source is the label before, it has the same parameters.

    :param source: layer with the labels; in training the target, delayed by the label of the start
    :param target: data key of the labels to predict; None: no loss
    :param num_labels: where there is no target: how many labels there are
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
    common: Layers = {"dim": dim, "dropout": dropout, "init": init}
    net = embedded(name + "_0", source, positions=positions, scale=scale_embedding, **common)
    for i in range(1, layers + 1):
        last, own = "%s_%d" % (name, i - 1), "%s_%d" % (name, i)
        net.update(self_attention(own + "_att", last, heads=heads, attention_left_only=True, **common))
        inner: Layers = {"ff_dim": ff_dim or 4 * dim, "activation": activation}
        net.update(feed_forward(own, own + "_att", parts=own + "_ff", **inner, **common))
    net[name + "_norm"] = {"class": "layer_norm", "from": "%s_%d" % (name, layers)}
    net[name] = {**_output(name + "_norm", target, num_labels), "forward_weights_init": init}
    return net


def _output(source: str, target: Optional[str], num_labels: Optional[int]) -> Layers:
    """Return the softmax over the labels of a target, with the loss, or over so many labels.

    :raises ConfigError: both or none of them are given
    """
    if (target is None) is (num_labels is None):
        raise OptionError("give either target, to train it, or num_labels, for a search.")
    size = {"n_out": num_labels} if target is None else {"target": target, "loss": "ce"}
    return {"class": "softmax", "from": source, **size}

"""Check whether targets of losses with a blank fit into the frames of the output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, ConfigError
from returnn_tf.config.derived import derived
from returnn_tf.graph.loss import LossNode
from returnn_tf.tasks.sanity.data_checks import tags
from returnn_tf.tasks.sanity.report import FAILED, SKIPPED, WARNING, Finding, ok
from returnn_tf.tasks.sanity.samples import Samples


def check_lengths(
    config: Config, network: Mapping[str, Any], loss: LossNode, samples: Samples, unusable: set[int]
) -> Finding:
    """Compare the labels of each sequence with the frames that the layer of the loss has for it.

    :param network: the network dict of the config
    :param unusable: gets the corpus indices of sequences without enough frames
    """
    check = "frames for the target of %r" % loss.name
    key = loss.target.path.partition(":")[2] if loss.target is not None else ""
    if "/" in loss.owner.path or loss.owner.path not in network or key not in samples.used:
        return Finding(check, SKIPPED, "the layer or its target is computed by other layers")
    try:
        net = _without_losses(config, network, loss)
    except ConfigError:
        return Finding(check, SKIPPED, "the network has no output without its losses")
    short, ratios = [], []
    for sample in samples.all:
        feed = _feed({key: value for key, value in sample.arrays.items() if key in net.used_data_keys}, samples)
        (frames,) = net.run(feed, train=False, fetch=[loss.owner.path]).layers[loss.owner.path].sizes.values()
        labels = sample.arrays[key]
        needed = len(labels) + int(np.sum(labels[1:] == labels[:-1]))
        ratios.append(needed / max(1, int(frames[0])))
        if needed > frames[0]:
            short.append(sample)
            unusable.add(sample.index)
    found = "labels per frame: %.2f on average, at most %.2f" % (float(np.mean(ratios)), max(ratios))
    if not short:
        return ok(check, found)
    text = (
        "%d of %d sequences have more labels (and blanks between equal ones) than layer %r has frames, e.g. %s: their "
        "loss is infinite. Reduce the downsampling before it, or leave these sequences out of the data."
        % (len(short), len(samples.all), loss.name, tags(short))
    )
    return Finding(check, FAILED if len(short) > 0.05 * len(samples.all) else WARNING, found, text, topic="ctc")


def _without_losses(config: Config, network: Mapping[str, Any], loss: LossNode) -> Network:
    layers = {name: _without(layer, "loss", "loss_opts", "loss_scale") for name, layer in network.items()}
    output = loss.owner.path
    layers[output] = {**layers[output], "is_output_layer": True}
    if loss.owner.output.dim is not None and "out_dim" not in layers[output]:
        layers[output]["n_out"] = loss.owner.output.dim  # else it would follow from the loss
    return Network.from_config(derived(config, {}, hidden={"network": layers}))


def _without(layer: Any, *options: str) -> Any:
    return {key: value for key, value in layer.items() if key not in options} if isinstance(layer, Mapping) else layer


def _feed(arrays: Mapping[str, Any], samples: Samples) -> dict[str, Any]:
    feed: dict[str, Any] = {}
    for key, value in arrays.items():
        feed[key] = value[None]
        if samples.used[key].time_axis is not None:
            feed[key + "/size0"] = np.array([len(value)], "int32")
    return feed

"""The trained network of a run, and what it gives for some sequences of a dataset."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.cli.report.weights import WeightsLayer, is_weights, weights_layers
from returnn_tf.cli.shared.network_changes import change_networks, with_outputs_of_loop
from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.compiler.result import LayerResult, RunResult
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError, ConfigError
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.datasets import dataset_from_config
from returnn_tf.engine.data.data_source import evaluation_names
from returnn_tf.engine.passes.dataset_pass import DatasetPass, steps_over_sequences
from returnn_tf.engine.passes.split_step import normalized_losses
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.logging.log import log

_MANY_FRAMES = 1 << 30  # no sequence is too long


@dataclass
class SeqReport:
    """What the network gives for a sequence.

    :param frames: of its longest data key
    :param losses: by name: per frame, label or sequence, as in the scores
    :param errors: the same
    :param values: layer -> value without batch axis, cut to its lengths, with the kinds of its axes
    :param feed: data key -> array, cut to its length
    :param batch: the feed itself, of a batch of this sequence
    """

    tag: str
    frames: int
    losses: dict[str, float]
    errors: dict[str, float]
    values: dict[str, tuple[NDArray[Any], tuple[str, ...]]] = field(default_factory=dict)
    feed: dict[str, NDArray[Any]] = field(default_factory=dict)
    batch: dict[str, Any] = field(default_factory=dict)

    @property
    def badness(self) -> float:
        """Return the sum of its losses, each per frame, label or sequence."""
        return sum(self.losses.values())


@dataclass
class Model:
    """A trained network with a dataset.

    :param checkpoint: path
    :param data: name of the dataset
    :param attention: the layers with attention weights that can be drawn
    :param hidden: path -> why those of a layer can't
    """

    net: Network
    checkpoint: str
    dataset: Any
    data: str
    attention: list[WeightsLayer]
    hidden: dict[str, str]


def load(config: Config, epoch: Optional[int], data: Optional[str]) -> Model:
    """Load network and dataset.

    :param epoch: of the checkpoint; default: the newest
    :param data: name of the dataset; default: the first evaluation dataset, else train
    :raises ConfigError: there is no checkpoint or dataset
    :raises DataError: the checkpoint or the dataset is damaged
    """
    config.update({"task": "eval", **({} if epoch is None else {"load_epoch": epoch})})
    names = evaluation_names(config) + (["train"] if DataSettings(config).train else [])
    data = data or (names[0] if names else "train")
    last = max(TrainingSettings(config).num_epochs, 1)
    plan = plan_from_config(NetworkSchedule(config).at(epoch or last).config, train=True)
    hidden = [path for path in _attention(plan) if path not in plan.by_path()]
    if hidden:
        change_networks(config, lambda network: _with_values(network, hidden))
    net, choice = load_network(config)
    dataset = dataset_from_config(config, data)
    if dataset is None:
        raise CommandError("The config has no dataset %r; it has: %s" % (data, ", ".join(names) or "none"))
    return Model(net, choice.path or "", dataset, data, *weights_layers(net))


def _attention(plan: Plan) -> list[str]:
    return [node.path for node in plan.visible_nodes() if is_weights(node)]


def _with_values(network: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Return a network whose loops keep the values of these layers; those of an earlier network are left out."""
    for path in paths:
        loop, _, name = path.rpartition("/")
        if loop:
            with contextlib.suppress(ConfigError):  # in a network of pretraining without that layer
                network = with_outputs_of_loop(network, loop, [name])
    return network


def sequences(model: Model, count: int) -> list[SeqReport]:
    """Run the network on at most ``count`` sequences spread over the dataset, one by one, as in evaluation."""
    net = model.net
    targets = [loss.target.path for loss in net.plan.losses if loss.target is not None]
    there = net.plan.by_path()
    fetch = list(dict.fromkeys(path for path in targets if path in there))
    options: dict[str, Any] = {"max_seqs": 1, "batch_size": _MANY_FRAMES}
    total = model.dataset.num_seqs
    if total is not None and not model.dataset.is_stream:
        order = np.sort(np.unique(model.dataset.seq_order(1)))
        chosen = np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int))
        options["seq_order"] = order[chosen]
        count = len(chosen)
    log.write(3, "evaluating %d sequences of %r one by one ..." % (count, model.data))
    keys = net.data_keys([*net.plan.roots(), *net.fetch_nodes(fetch), *(layer.node for layer in model.attention)])
    found: list[SeqReport] = []
    one_pass: DatasetPass[RunResult] = DatasetPass(
        "report on %r" % model.data, dict, lambda feed, batch: net.run(feed, train=False, fetch=fetch)
    )
    with contextlib.closing(steps_over_sequences(one_pass, model.dataset, 1, keys, **options)) as steps:
        for step in steps:
            found.append(_report_of(step.batch, step.result, normalized_losses(net)))
            if len(found) >= count:
                break
    return found


def _report_of(batch: Any, result: RunResult, normalized: Sequence[str]) -> SeqReport:
    counts = {name: max(float(count), 1.0) for name, count in result.counts.items()}
    of_losses = {name: 1.0 if name in normalized else count for name, count in counts.items()}
    losses = {name: float(loss) / of_losses.get(name, 1.0) for name, loss in result.losses.items()}
    errors = {name: float(error) / counts.get(name, 1.0) for name, error in result.errors.items()}
    feed = {}
    for key, array in batch.feed.items():
        if "/" not in key:
            size = batch.feed.get(key + "/size0")
            feed[key] = np.asarray(array)[0] if size is None else np.asarray(array)[0][: int(size[0])]
    values = {path: (_cut(layer), layer.axes[1:]) for path, layer in result.layers.items() if layer.axes[:1] == ("B",)}
    frames = max(batch.num_frames.values(), default=0)
    return SeqReport(batch.seq_tags[0], frames, losses, errors, values, feed, batch.feed)


def _cut(layer: LayerResult) -> NDArray[Any]:
    """Return the value of the only sequence, without padding."""
    cut = tuple(
        slice(int(layer.sizes[axis][0])) if axis in layer.sizes else slice(None) for axis in range(1, layer.value.ndim)
    )
    value: NDArray[Any] = layer.value[0][cut]
    return value

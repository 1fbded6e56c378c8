"""Checks a graph for single steps: it must give the hypotheses of a search the scores that the search gave them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.epoch_value import copied, network_of
from returnn_tf.config.errors import ExportDataError, ExportError
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.sample import random_batch
from returnn_tf.export.steps.client import StepDecoder
from returnn_tf.export.steps.search import ChoiceOptions, SearchOptions, StepSearch
from returnn_tf.export.tensor_info import graph_name

#: What makes the score of a hypothesis the sum of the scores of its labels.
_PLAIN: dict[str, Any] = {
    "length_normalization": False,
    "base_beam_score_scale": 1.0,
    "independent_of_batch": False,
    "recombine": None,
    "recombine_by": None,
    "recombine_blank": None,
    "custom_score_combine": None,
    "cheating": False,
    "keep_beams": False,
    "random_sample_scale": 0.0,
    "is_output_layer": True,
}
_BEAM_SIZE = 4
#: Scores below belong to no hypothesis, but fill the beam.
_NONE = -1e20


def network_with_params(config: Config, net: Network) -> Network:
    """Return the network of a config for search, with the parameters of another one.

    :raises DataError: that one lacks a parameter
    """
    made = Network(plan_from_config(config, search=True), config)
    values = net.get_param_values()
    lacking = [name for name in made.stored_params if name not in values]
    if lacking:
        raise ExportDataError(
            "export to steps: the search needs the parameter %r, which the network lacks. Plan it with search=True."
            % lacking[0]
        )
    made.set_param_values({name: values[name] for name in made.stored_params})
    made.global_step.assign(net.global_step)
    return made


class StepCheck:
    """A search with the labels and scores of all its hypotheses.

    :param layer: path of the `rec` layer
    :param choices: the names of the choices in it, in the order of the decoder
    :param scored: those that give scores
    """

    def __init__(self, net: Network, layer: str, choices: list[str], scored: list[str]) -> None:
        self._layer, self._choices = layer, choices
        network = copied(network_of(net.config))
        loop = _find(network, layer)
        loop["include_eos"] = True  # so that the label of the end is known
        for name in choices:
            options = _find({"": {"unit": loop["unit"]}}, "/" + name)
            options.update(_PLAIN)
            options["beam_size"] = _BEAM_SIZE
            options["prob_scale"] = 1.0 if name in scored else 0.0
        config = derived(net.config, {}, hidden={"network": network, "get_network": None})
        self._model = InferenceModel(network_with_params(config, net), ["%s/%s" % (layer, name) for name in choices])

    def run(self, decoder: StepDecoder, tolerance: float) -> None:
        """Score the hypotheses of a search in a random batch by single steps.

        :raises DataError: a score differs by more than the tolerance, relative to the largest one
        """
        # The encoder run may need a data key for the number of sequences that the search takes from another one.
        extern_data = self._model.net.extern_data
        feed = random_batch(extern_data, list(extern_data), batch=3, frames=13)
        names = self._model.feed_names({name: name for name in self._model.inputs})
        expected = self._model.expected({name: feed[key] for key, name in names.items()})
        name = graph_name("%s/%s" % (self._layer, self._choices[-1]))
        scores = expected[name + "_scores"]
        seqs, beam = scores.shape
        sizes = expected.get(name + "_size0", np.full([seqs], expected[name].shape[1]))
        lens = np.broadcast_to(sizes.reshape(seqs, -1), [seqs, beam])
        labels = [
            expected[graph_name("%s/%s" % (self._layer, choice))].reshape(seqs, beam, -1) for choice in self._choices
        ]
        found = self._scores(decoder, feed, labels, lens)
        valid = scores > _NONE
        difference = np.where(valid, np.abs(found - scores), 0.0)
        scale = max(1.0, float(np.abs(scores[valid]).max(initial=0.0)))
        # a comparison with NaN is false
        if not (difference <= tolerance * scale).all():
            worst = np.unravel_index(np.nanargmax(np.where(np.isnan(difference), np.inf, difference)),
                                        difference.shape)  # fmt: skip
            raise ExportDataError(
                "The single steps of layer %r do not compute what its search does, so nothing was written: the score "
                "of hypothesis %d of sequence %d is %s, not %s."
                % (self._layer, worst[1], worst[0], found[worst], scores[worst])
            )

    def _scores(
        self, decoder: StepDecoder, feed: Mapping[str, Any], labels: list[NDArray[Any]], lens: NDArray[Any]
    ) -> NDArray[Any]:
        """Return the sums of the scores of labels, [batch, beam]."""
        facts = decoder.facts
        plain = ChoiceOptions(beam_size=lens.shape[1], length_normalization=False)
        known = lens[:, 0] if decoder.ended() is None else None
        most = None if known is None else int(lens.max(initial=0))
        options = SearchOptions([plain] * len(labels), include_eos=True, lengths=facts["lengths"], max_steps=most)
        source = np.broadcast_to(np.arange(lens.shape[1], dtype=np.int32), lens.shape)

        def pick(choice: int, step: int) -> tuple[NDArray[Any], NDArray[Any]]:
            inside = step < lens
            label = labels[choice][:, :, min(step, labels[choice].shape[2] - 1)]
            return source, np.where(inside, label, 0).astype(np.int32)

        states = decoder.encode(feed)
        entries = np.repeat(np.arange(len(lens)), lens.shape[1])
        states = decoder.select(states, entries)
        return StepSearch(decoder, options).run(states, len(lens), lens.shape[1], pick, known).scores


def _find(network: Mapping[str, Any], path: str) -> Any:
    """Return the dict of a layer in nested networks.

    :raises ConfigError: it is in none of them
    """
    found: Any = network
    for i, name in enumerate(path.split("/")):
        if i:
            found = next((found[key] for key in ("subnetwork", "unit") if isinstance(found.get(key), Mapping)), {})
        if name not in found:
            raise ExportError(
                "export to steps: layer %r is made by other means than a subnetwork, where its search can't be checked."
                % path
            )
        found = found[name]
    return found

"""Task ``decode`` for searches by `choice`: its settings as layers in the loop, beside the choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.errors import SearchError
from returnn_tf.config.settings.decoding import DecodingSettings
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.decoding.tuning import TUNED
from returnn_tf.engine.search.end_labels import loop_of_search
from returnn_tf.graph.layer import Node
from returnn_tf.graph.registry import LAYERS
from returnn_tf.layers.shared.nested import is_network, network_options
from returnn_tf.logging.log import log
from returnn_tf.loops.frame import loop_of
from returnn_tf.loops.plan import LoopPlan

#: Settings for the decoder of scores per frame.
_OF_FRAMES = (
    "decode_posteriors", "decode_topology", "decode_priors", "decode_prior_scale", "decode_blank_scale",
    "decode_beam_threshold", "decode_labels_per_frame", "decode_nbest", "decode_reference", "decode_threads",
    "decode_tune", "decode_loop_score", "decode_forward_score",
)  # fmt: skip
#: Settings with words, which may be for either.
WORDS = ("decode_lexicon", "decode_lm", "decode_hot_words")
#: Settings with which task decode searches, also by `choice`.
OF_TASK = ("decode_tune", "decode_nbest", "decode_reference")
#: The names of the layers that are added to the unit.
ADDED = ("decode_words", "decode_hot_words", "decode_log_probs", "decode_scores")
#: What a search by choice has of the scales that can be tuned.
_TUNED = ("lm_scale", "word_score", "unknown_score", "beam_size")
#: The values of a choice by its input_type -> the activation that makes log probabilities of them.
_LOG_PROBS = {"prob": "safe_log", "logits": "log_softmax"}


@dataclass(frozen=True)
class SearchedChoice:
    """The choice of a loop that searches.

    :param node: of the choice
    """

    node: Node
    loop: LoopPlan


def searched_choice(plan: Plan, name: str) -> Optional[SearchedChoice]:
    """Return the choice whose search is meant; None if there is none.

    :param plan: for search
    :param name: of the choice, its loop, or a layer with the labels that it finds; "": the only one of the network
    :raises ConfigError: it is not clear which, or the loop has several
    """
    loops = [loop for loop in map(loop_of, plan.all_nodes()) if loop is not None and loop.search is not None]
    if name:
        loops = [loop for loop in loops if name in (loop.path, *(node.path for node in _choices(loop)))] or [
            loop for loop in [_loop_of_layer(plan, name)] if loop is not None
        ]
    choices = [SearchedChoice(node, loop) for loop in loops for node in _choices(loop) if name in ("", node.path)]
    choices = choices or [SearchedChoice(node, loop) for loop in loops for node in _choices(loop)]
    if len(choices) > 1:
        raise SearchError(
            "Several layers choose labels in a search: %s. Name one in decode_layer."
            % ", ".join(repr(found.node.path) for found in choices)
        )
    return choices[0] if choices else None


def _choices(loop: LoopPlan) -> list[Node]:
    return [] if loop.search is None else list(loop.search.choices)


def _loop_of_layer(plan: Plan, name: str) -> Optional[LoopPlan]:
    node = plan.by_path().get(name)
    return None if node is None or not node.output.sparse else loop_of_search(plan, node)


def check_settings(config: Config, found: SearchedChoice, but: Sequence[str] = ()) -> None:
    """Check that no setting is for scores of labels per frame.

    :param but: settings that may be there
    :raises ConfigError: one is
    """
    settings = DecodingSettings(config)
    for name in _OF_FRAMES:
        given = settings.is_set(name) and settings.value(name) != DecodingSettings.declared()[name].default
        if given and name not in but:
            raise SearchError(
                "%s: it is for scores of labels per frame, but %r is a search by 'choice'. Remove it, or name the "
                "layer with the scores in decode_layer." % (settings.describe_source(name), found.node.path)
            )


def idle_scales(settings: DecodingSettings) -> dict[str, str]:
    """Return the scales that have no effect on a search by `choice`, and why."""
    found = {name: "on a search by 'choice'" for name in TUNED if name not in _TUNED}
    if not settings.decode_lm:
        found.update(lm_scale="without decode_lm", unknown_score="without decode_lm")
    return found


def words_layer(found: SearchedChoice) -> str:
    """Return the path of the layer with the scores of words that `with_words` adds."""
    return "%s/%s" % (found.node.path.rpartition("/")[0], ADDED[0])


def with_words(config: Config, layers: Mapping[str, Any], plan: Plan, found: SearchedChoice) -> Config:
    """Return the config with lexicon, language model and hot words of the settings ``decode_...`` in the search.

    :param layers: the network
    :param plan: of this network, for search
    :raises ConfigError: the network has to be changed by hand, or the names of its labels are not known
    """
    settings = DecodingSettings(config)
    given = _layers(settings, LabelNames(plan, config), found)

    def change(unit: Mapping[str, Any], name: str) -> dict[str, Any]:
        choice = dict(unit[name])
        if settings.is_set("decode_beam_size"):
            choice["beam_size"] = settings.decode_beam_size
        if not given:
            return {**unit, name: choice}
        _check(unit, name, found.node.path)
        source = choice["from"] if isinstance(choice["from"], str) else choice["from"][0]
        added = {layer: {**options, "from": "prev:" + name} for layer, options in given.items()}
        activation = _LOG_PROBS.get(choice.get("input_type", "prob"))
        if activation is not None:
            added["decode_log_probs"] = {"class": "activation", "activation": activation, "from": source}
            source = "decode_log_probs"
        scores = {"class": "combine", "kind": "add", "from": [source, *given]}
        choice.update({"from": "decode_scores", "input_type": "log_prob"})
        return {**unit, **added, "decode_scores": scores, name: choice}

    network = _changed(layers, found.node.path.split("/"), change, found.node.path)
    log.write(3, "decode: search of %r with %s" % (found.node.path, ", ".join(given) or "nothing but the network"))
    done = {name: DecodingSettings.declared()[name].default for name in (*WORDS, *OF_TASK)}  # they are used
    return derived(config, {}, hidden={**done, "network": network, "get_network": None, "pretrain": None})


def _check(unit: Mapping[str, Any], name: str, path: str) -> None:
    """Check that scores of words may be added to those of the source of a choice.

    :param path: of the choice, for errors
    :raises ConfigError: the choice does something else with them, or a layer has the name of one to add
    """
    choice, usual = unit[name], {"prob_scale": 1, "custom_score_combine": None, "early_stop": False}
    given = choice.get("from")
    other = [option for option, value in usual.items() if choice.get(option, value) != value]
    if not isinstance(given, str) and not (isinstance(given, (list, tuple)) and len(given) == 1):
        other.append("several sources")
    other += ["a layer %r beside it" % layer for layer in ADDED if layer in unit]
    if other:
        raise SearchError(
            "Layer %r has %s, so scores of words can't be added. Remove that, or add the layers word_scores and "
            "hot_words to the network yourself and run ++task search." % (path, " and ".join(other))
        )


def _layers(settings: DecodingSettings, names: LabelNames, found: SearchedChoice) -> dict[str, dict[str, Any]]:
    """Return the layers to add by name, without their sources.

    :raises ConfigError: the names of the labels are not known, or which label is the blank or the end
    """
    words = bool(settings.decode_lexicon or settings.decode_lm or settings.decode_word_score)
    hot_words = bool(settings.decode_hot_words)
    if not words and not hot_words:
        return {}
    dim = found.node.output.sparse_dim
    assert dim is not None
    known = list(names.names(dim))
    if not known:
        raise SearchError(
            "The names of the labels of layer %r are not known, so that words can't be spelt. Give extern_data the "
            "option vocab, or the dataset a vocabulary." % found.node.path
        )
    vocab: Any = names.vocabulary(dim) or {
        "class": "CharacterTargets" if all(len(name) == 1 for name in known) else "Vocabulary",
        "labels": known,
        "unknown_label": None,
    }
    shared = {"vocab": vocab, **_special(settings, names, found)}
    layers: dict[str, dict[str, Any]] = {}
    if words:
        options = {name: settings.value("decode_" + name) for name in ("lexicon", "lm", "lm_level", "separator")}
        options = {name: value for name, value in options.items() if value}
        scales = ("word_score", *(["lm_scale", "unknown_score"] if settings.decode_lm else []))
        options.update({name: settings.value("decode_" + name) for name in scales})
        layers["decode_words"] = {"class": "word_scores", **options, **shared}
    if hot_words:
        phrases = {"phrases": settings.decode_hot_words, "weight": settings.decode_hot_word_weight}
        layers["decode_hot_words"] = {"class": "hot_words", **phrases, **shared}
    return layers


def _special(settings: DecodingSettings, names: LabelNames, found: SearchedChoice) -> dict[str, int]:
    """Return the label that ends sequences, or the blank, as options.

    :raises ConfigError: it is not known
    """
    path, end, dim = found.node.path, found.loop.ending.end, found.node.output.sparse_dim
    assert dim is not None
    ends = (end.layer.true_labels(found.node) if end is not None else None) or frozenset()
    blank = names.blank(dim) if settings.decode_blank is None else settings.decode_blank
    special = {"end_label": min(ends)} if ends else {}
    if blank is not None and (settings.decode_blank is not None or blank not in ends):
        special["blank"] = blank
    if end is not None and (len(ends) > 1 or not special):
        raise SearchError(
            "Layer %r: which label ends a sequence can't be told from %r. Add the layers word_scores and hot_words to "
            "the network yourself, with end_label, and run ++task search." % (path, end.path)
        )
    if not special:
        raise SearchError("Layer %r: which label is the blank is not known. Set decode_blank." % path)
    return special


def _changed(network: Mapping[str, Any], path: list[str], change: Any, whole: str) -> dict[str, Any]:
    """Return a network with another layer, and others beside it.

    :param path: of the layer in this network
    :param change: gets the network with the layer, and its name; returns another one
    :param whole: the path from outside, for errors
    """
    name, layer = path[0], network.get(path[0])
    if isinstance(layer, Mapping):
        if len(path) == 1:
            changed: dict[str, Any] = change(network, name)
            return changed
        for option in network_options(LAYERS.find(layer.get("class"))):
            inner = layer.get(option)
            if isinstance(inner, Mapping) and is_network(inner) and path[1] in inner:
                return {**network, name: {**layer, option: _changed(inner, path[1:], change, whole)}}
    raise SearchError(
        "Layer %r is not written in the network where its path says. Add the layers word_scores and hot_words to the "
        "network yourself, and run ++task search." % whole
    )

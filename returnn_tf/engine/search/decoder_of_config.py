"""The decoder of scores per frame that the settings of a config describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.errors import CtcError, NativeError, did_you_mean
from returnn_tf.config.settings.decoding import DecodingSettings
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.datasets.vocabulary.hot_words import HotPhrase, hot_phrases
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.decoding.beam import BeamDecoder, BeamOptions
from returnn_tf.engine.decoding.posteriors import read_log_priors
from returnn_tf.engine.search.posteriors import is_posterior_layer
from returnn_tf.graph.layer import Node
from returnn_tf.layers.losses.ctc import CtcLoss
from returnn_tf.native.errors import NativeOpError
from returnn_tf.ops.sequence.lexicon import read_lexicon
from returnn_tf.ops.sequence.ngram_file import open_ngram

#: Hypotheses that are compared for the confidence of words, also if fewer are written: those of a lexicon or a language
#: model are not as sure as their labels are.
_COMPARED = 8


def decoded_node(plan: Plan, name: str) -> Node:
    """Return the layer whose posteriors are decoded.

    :param name: as ``decode_layer`` has it; "": the one with the loss ``ctc``
    :raises ConfigError: it is not there, or has no value for each frame and label
    """
    if name:
        (node,) = plan.find_nodes([name])
    else:
        found = list(dict.fromkeys(loss.owner for loss in plan.losses if isinstance(loss.loss, CtcLoss)))
        if len(found) != 1:
            raise CtcError(
                "%s the loss 'ctc'. Name the layer with the posteriors: decode_layer = '...'"
                % ("Layers %s have" % ", ".join(repr(node.path) for node in found) if found else "No layer has")
            )
        (node,) = found
    if not is_posterior_layer(node.output):
        raise CtcError(
            "Layer %r has the output %s, but decoding needs posteriors [batch, time, labels]. Name another one in "
            "decode_layer." % (node.path, node.output)
        )
    return node


def decoder_of_config(config: Config, names: LabelNames, node: Node) -> BeamDecoder:
    """Return the decoder for the posteriors of a layer.

    :raises ConfigError: settings that do not fit; no compiler
    :raises DataError: a file that is missing or does not fit
    """
    settings = DecodingSettings(config)
    dim = node.output.feature_dim
    assert dim is not None and dim.size is not None
    labels = _labels(settings, names, node)
    lexicon = read_lexicon(settings.decode_lexicon, labels) if settings.decode_lexicon else None
    try:
        lm = None
        if settings.decode_lm:
            lm = open_ngram(settings.decode_lm, settings.decode_lm_level, lexicon)
        return BeamDecoder(
            dim.size,
            _blank(settings, names, node),
            labels,
            beam_options(settings),
            lexicon=lexicon,
            lm=lm,
            hot_words=_hot_words(settings),
            log_priors=read_log_priors(settings.decode_priors, dim.size) if settings.decode_priors else None,
        )
    except NativeOpError as exc:
        raise NativeError(
            "Decoding is done by a program in C++, which can't be compiled here: %s. Without it, the layer "
            "'ctc_greedy' gives the best path." % exc
        ) from exc


def beam_options(settings: DecodingSettings) -> BeamOptions:
    """Return the sizes and scales that the settings have."""
    return BeamOptions(
        beam_size=settings.decode_beam_size,
        beam_threshold=settings.decode_beam_threshold,
        labels_per_frame=settings.decode_labels_per_frame,
        lm_scale=settings.decode_lm_scale,
        word_score=settings.decode_word_score,
        unknown_score=settings.decode_unknown_score,
        loop_score=settings.decode_loop_score,
        forward_score=settings.decode_forward_score,
        prior_scale=settings.decode_prior_scale,
        blank_scale=settings.decode_blank_scale,
        nbest=max(settings.decode_nbest, _COMPARED if settings.decode_lexicon or settings.decode_lm else 1),
        aligned=settings.decode_nbest,
    )


def _labels(settings: DecodingSettings, names: LabelNames, node: Node) -> DecodedLabels:
    dim = node.output.feature_dim
    assert dim is not None
    known, separator = list(names.names(dim)), None
    if settings.decode_separator:
        if settings.decode_separator not in known:
            raise CtcError(
                "%s is no label of the model. %s"
                % (settings.describe_source("decode_separator"), did_you_mean(settings.decode_separator, known[:2000]))
            )
        separator = known.index(settings.decode_separator)
    if not known and (settings.decode_lexicon or settings.decode_hot_words):
        raise CtcError(
            "The names of the labels of layer %r are not known, so that words can't be spelt. Give extern_data the "
            "option vocab, or the dataset a vocabulary." % node.path
        )
    return DecodedLabels(known, names.vocabulary(dim), separator)


def _blank(settings: DecodingSettings, names: LabelNames, node: Node) -> Optional[int]:
    dim = node.output.feature_dim
    assert dim is not None and dim.size is not None
    if settings.decode_topology == "hmm":
        if settings.decode_blank is not None:
            raise CtcError(
                "%s: there is no blank with decode_topology = 'hmm'. Remove one of them."
                % settings.describe_source("decode_blank")
            )
        return None
    blank = names.blank(dim) if settings.decode_blank is None else settings.decode_blank
    if blank is None:
        raise CtcError(
            "Layer %r: no loss or layer says which label is the blank. Set decode_blank, e.g. to %d for the last one; "
            "for the states of an HMM set decode_topology = 'hmm'." % (node.path, dim.size - 1)
        )
    if blank >= dim.size:
        raise CtcError(
            "%s is %d, but layer %r has the labels 0 to %d."
            % (settings.describe_source("decode_blank"), blank, node.path, dim.size - 1)
        )
    return blank


def _hot_words(settings: DecodingSettings) -> list[HotPhrase]:
    given: Any = settings.decode_hot_words
    if not given:
        return []
    if not isinstance(given, (str, Mapping, list, tuple)):
        raise CtcError(
            "%s must be a file, a list of words and phrases, or a dict with their weights, not %r."
            % (settings.describe_source("decode_hot_words"), given)
        )
    return hot_phrases(given, settings.decode_hot_word_weight)

"""The labels of a loop, for layers that score which may follow: one of each sequence, and their names."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.errors import did_you_mean
from returnn_tf.config.options import OptionValueError
from returnn_tf.datasets.vocabulary import make_vocabulary
from returnn_tf.datasets.vocabulary.decoded_labels import DecodedLabels
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.tensor import Data


def label_of_step(ctx: PlanContext) -> tuple[Data, int]:
    """Return the template of the source, one label for each sequence, and the number of labels.

    :raises ConfigError: it is something else, or the layer is in no loop
    """
    source = ctx.single_source()
    if not ctx.in_step:
        raise ctx.error("scores the labels of a loop step by step: put it into the unit of a 'rec' layer.")
    if source.sparse_dim is None or source.rank != 1 or source.batch_axis is None:
        raise ctx.error("the source must be one label per sequence, but it is %s." % source)
    return source, ctx.need_static(source.sparse_dim, "the number of labels")


def named_labels(vocab: Any, size: int, separator: str = "", **specials: Optional[int]) -> DecodedLabels:
    """Return the labels of a source, which can spell words.

    :param vocab: as an option has it
    :param size: number of labels of the source
    :param separator: name of the label between words; "": as the vocabulary says
    :param specials: labels that the vocabulary need not have, by option
    :raises ConfigError: the vocabulary is wrong, or not one of these labels
    """
    try:
        vocabulary = make_vocabulary(vocab, owner="vocab")
    except (ConfigError, DataError) as exc:
        raise OptionValueError(str(exc)) from exc
    if vocabulary.is_random:
        raise OptionValueError("vocab: it splits words at random. Remove what makes it do so.")
    for name, label in specials.items():
        if label is not None and not 0 <= label < size:
            raise OptionValueError("%s is %d, but the source has the labels 0 to %d." % (name, label, size - 1))
    known = vocabulary.num_labels
    others = sorted(set(range(known, size)) - set(specials.values()))
    if known > size or others:
        raise OptionValueError(
            "vocab has %d labels, but the source has %d. Give the vocabulary of these labels%s."
            % (known, size, "; of further ones, blank and end_label" if others else "")
        )
    names = list(vocabulary.labels)
    if separator and separator not in names:
        raise OptionValueError(
            "separator: %r is no label of vocab. %s" % (separator, did_you_mean(separator, names[:2000]))
        )
    return DecodedLabels(names, vocabulary, names.index(separator) if separator else None)

"""`kenlm`: scores of an n-gram language model for the labels of a loop."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from returnn_tf.config import DataError
from returnn_tf.config.options import OptionValueError, option
from returnn_tf.datasets.core.safe_files import path_of
from returnn_tf.datasets.vocabulary import read_labels
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Code
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.loop_axis import check_single_step
from returnn_tf.layers.shared.loop_labels import label_of_step
from returnn_tf.ops.sequence.ngram import LabelScorer, load_ngram_model
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(frozen=True, eq=False)
class KenLmPlan(LayerPlan):
    """The plan of `KenLmLayer`.

    :param path: of the model
    :param labels: those of the vocabulary, in order
    """

    path: str
    labels: Sequence[str]


@register_layer("kenlm")
class KenLmLayer(Planned[KenLmPlan]):
    """The natural log probability that an n-gram model assigns to the label of a step, given those before it.

    With dense_output those of all labels that may follow the label of the step: with "prev:output" as source, this is
    what a search needs. Word pieces (bpe_merge_symbol) are scored when their word is complete. Sentences begin with
    ``<s>``; their end is scored if ``</s>`` is one of the labels. The model is read by the package kenlm
    (the extra ``kenlm``), which also supports its binary files; without it, ARPA text files are read by this program.
    It runs in Python on the CPU: for large vocabularies dense_output is slow. No gradient.

    Parameters: none. Lengths: one value per step of the loop.

    Example::

        import os, tempfile

        path = os.path.join(tempfile.mkdtemp(), "example.%s")
        arpa = ["/data/", "ngram 1=4", "", "/1-grams:", "-99 <s>", "-0.4 a", "-0.6 b", "-0.5 <unk>", "", "/end/"]
        with open(path % "arpa", "w") as file:
            for line in arpa:
                print(line.replace("/", chr(92)), file=file)  # a backslash marks the sections
        with open(path % "vocab", "w") as file:
            print("a", "b", "<unk>", sep=chr(10), file=file)
        network = {"output": {"class": "rec", "from": "data", "unit": {
            "lm": {"class": "kenlm", "from": "prev:label", "lm_file": path % "arpa",
                "vocab_file": path % "vocab", "vocab_unknown_label": "<unk>",
                "input_step_offset": 1, "dense_output": True},
            "am": {"class": "linear", "activation": "log_softmax", "n_out": 3, "from": "data:source"},
            "scores": {"class": "combine", "kind": "add", "from": ["am", "lm"]},
            "label": {"class": "choice", "input_type": "log_prob", "target": "classes", "beam_size": 2,
                "initial_output": 0, "from": "scores"},
            "output": {"class": "copy", "from": "scores"}}}}
    """

    has_memory = True

    lm_file: Code = option(help="n-gram model: ARPA or kenlm file, or a function that returns the path")
    vocab_file: Code = option(help="file with the labels of the source: a dict from label to index, or one per line")
    vocab_unknown_label: str = option("UNK", help="the label for words unknown to the model")
    bpe_merge_symbol: Optional[str] = option(None, help="suffix of word pieces that are continued, e.g. '@@'")
    input_step_offset: int = option(0, help="labels of earlier steps are ignored; 1 for 'prev:output'")
    axis: Optional[AxisOption] = option(None, help="single_step_dim or the dim of the steps of the loop; checked")
    debug: bool = option(False, help="print the labels", inert="add a 'print' layer to see them")
    dense_output: bool = option(False, help="output the scores of all possible next labels, as features")

    def template(self, ctx: PlanContext) -> KenLmPlan:
        """Infer the output: [batch], or with dense_output [batch, labels]."""
        check_single_step(ctx, self.axis)
        source, size = label_of_step(ctx)
        path, vocab = (path_of(getattr(self, name), where=name) for name in ("lm_file", "vocab_file"))
        for option_name, file in (("lm_file", path), ("vocab_file", vocab)):
            if not os.path.exists(file):
                raise OptionValueError(
                    "%s %r does not exist (current directory: %s)." % (option_name, file, os.getcwd())
                )
        try:
            labels = read_labels(vocab)
        except DataError as exc:
            raise OptionValueError("vocab_file: %s" % exc) from exc
        if len(labels) != size:
            text = "vocab_file %r has %d labels, but the source %s has %d."
            raise ctx.error(text % (vocab, len(labels), source, size))
        history = source.replace(dtype="string", sparse_dim=None, vocab=None)
        ctx.loop_state("history", history, lambda emit: tf.fill(emit.shape(history), ""))
        data = source.replace(dtype=ctx.float_dtype, sparse_dim=None, vocab=None)
        if self.dense_output:
            data = data.with_axis(1, ctx.new_feature(size), feature=True)
        return KenLmPlan(data, path, labels)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a Python function of the label strings."""
        scorer = LabelScorer(
            load_ngram_model(self.plan.path), self.plan.labels, self.vocab_unknown_label, self.bpe_merge_symbol or ""
        )
        before = ctx.loop_state("history")
        labels = tf.strings.as_string(ctx.source())
        longer = tf.where(before == "", labels, tf.strings.join([before, labels], " "))
        counts = ctx.lowering.loop.index >= self.input_step_offset
        after = tf.where(counts, longer, before)
        ctx.set_loop_state("history", after)
        dense, size = self.dense_output, len(self.plan.labels)

        def score(strings: Any, strings_before: Any) -> Any:
            histories = [tuple(map(int, text.split())) for text in strings]
            if dense:
                rows = [scorer.next_scores(history) for history in histories]
                return np.array(rows, "float32").reshape([len(rows), size])
            earlier = [tuple(map(int, text.split())) for text in strings_before]
            return np.array([scorer.total(a) - scorer.total(b) for a, b in zip(histories, earlier)], "float32")

        value = tf.cast(tf.numpy_function(score, [after, before], tf.float32, stateful=False), ctx.float_dtype)
        value.set_shape(ctx.output.static_shape)
        return tf.stop_gradient(value)

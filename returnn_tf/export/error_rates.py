"""The error rates of an export on a dataset, beside those of the network: ``returnn-tf export --check dev``."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import ExportDataError, ExportError
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.engine.data.label_names import LabelNames
from returnn_tf.engine.search.end_labels import end_labels, without_end
from returnn_tf.engine.transcripts.edit_distance import Errors, align
from returnn_tf.export.dataset_inputs import dataset_inputs
from returnn_tf.export.exporters import Exporter
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.tensor_info import VALUE, graph_name
from returnn_tf.graph.layer import Node
from returnn_tf.logging.log import log

Arrays = Mapping[str, NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class ErrorCheck:
    """The options of the comparison.

    :param dataset: name in the config
    :param most: largest increase of an error rate, relative to that of the network
    :param sequences: how many of the dataset are compared, from the first one in its order
    """

    dataset: str
    most: float = 0.02
    sequences: int = 1000

    def run(self, exporter: Exporter, original: InferenceModel, exported: InferenceModel, folder: str) -> None:
        """Compute both error rates and log them.

        :param original: the network as it was given
        :param exported: the network as it is exported
        :param folder: what was written
        :raises ConfigError: there is no such dataset, or no output with labels and a reference in it
        :raises DataError: the error rate of the export is too high; or the dataset has no reference
        """
        if set(original.input_infos) != set(exported.input_infos):
            raise ExportError("export --check: an export of blocks or steps has no error rate. Omit --check.")
        scored = _scored_outputs(original)
        pairs = {each: (Errors(), Errors()) for each in scored}
        batches = dataset_inputs(
            exported,
            self.dataset,
            where="--check",
            count=self.sequences,
            batch=exporter.fixed_batch,
            frames=exporter.fixed_frames,
            references=[each.key for each in scored],
        )
        for feed, references in batches:
            outputs = original.expected(feed), exporter.run(folder, feed)
            for each, counts in pairs.items():
                for values, errors in zip(outputs, counts):
                    each.count(values, references[each.key], errors)
        for each, (before, after) in pairs.items():
            self._compare(each, before, after, can_exclude=hasattr(exporter, "exclude"))

    def _compare(self, scored: _Scored, before: Errors, after: Errors, *, can_exclude: bool) -> None:
        if not before.reference:
            raise ExportDataError(
                "export --check: the dataset %r has no labels of %r to compare with." % (self.dataset, scored.key)
            )
        text = "%s, %s errors in %r: %s in the network; %s in the export" % (
            scored.node.path, scored.kind, self.dataset, before.text(), after.text(),
        )  # fmt: skip
        if after.total > before.total * (1.0 + self.most):
            raise ExportDataError(
                "export --check: %s. That is more than a share of %g above the network, so nothing was written. %s "
                "more by --max-loss."
                % (text, self.most, "Leave sensitive layers out by --exclude, or allow" if can_exclude else "Allow")
            )
        log.write(1, text)


@dataclasses.dataclass(frozen=True)
class _Scored:
    """An output with labels, or with scores of labels.

    :param key: the data key with the references
    :param kind: "frame": one label for each frame; "label": a sequence of labels
    :param blank: of CTC
    :param ends: labels that are left out at the end
    """

    node: Node
    key: str
    kind: str
    blank: Optional[int] = None
    ends: frozenset[int] = frozenset()

    def count(self, values: Arrays, references: Sequence[NDArray[Any]], errors: Errors) -> None:
        """Add the errors of a batch.

        :param values: all outputs, by name
        :param references: of each sequence that counts; there may be further ones in the batch
        """
        for row, reference in enumerate(references):
            found = self._labels(values, row)
            if self.kind == "frame":
                if len(found) != len(reference):
                    raise ExportDataError(
                        "export --check: %r has %d frames for a sequence with %d labels of %r; without a blank that is "
                        "known, there has to be one for each." % (self.node.path, len(found), len(reference), self.key)
                    )
                errors.substitutions += int((found != reference).sum())
                errors.reference += len(reference)
                continue
            wanted, said = (list(map(str, without_end(x, self.ends))) for x in (reference, found))
            errors.add(align(wanted, said))

    def _labels(self, values: Arrays, row: int) -> NDArray[Any]:
        """Return the labels of a sequence, those of the best hypothesis of a search."""
        name = graph_name(self.node.path)
        if self.node.output.beam is not None:
            scores = values[name + "_scores"]
            row = row * scores.shape[1] + int(np.argmax(scores[row]))
        value: NDArray[Any] = values[name][row]
        lengths = values.get(name + "_size0")
        if lengths is not None:
            value = value[: lengths[row] if lengths.ndim else lengths]
        if self.node.output.sparse:
            return value
        labels: NDArray[Any] = value.argmax(axis=-1)
        if self.blank is not None:
            labels = np.array([label for label, _ in itertools.groupby(labels) if label != self.blank], labels.dtype)
        return labels


def _scored_outputs(model: InferenceModel) -> list[_Scored]:
    """Return the outputs that have references.

    :raises ConfigError: there are none
    """
    plan, found = model.net.plan, []
    names = LabelNames(plan, model.net.config)
    targets = {loss.owner: loss.target.extern_key for loss in plan.losses if loss.target is not None}
    for node in model.nodes:
        data = node.output
        key = targets.get(node) or next(iter(node.layer.target_names), None)
        if key is None and data.sparse:
            key = NetworkSettings(model.net.config).target
        reference = plan.extern_data.get(key or "")
        if key is None or reference is None or not reference.sparse or reference.rank != 2:
            continue
        info = model.outputs.get(graph_name(node.path))
        axes = (("B", "T"), ("B", "T", "F"))[not data.sparse]
        if info is None or info.kind != VALUE or tuple(info.axes) != axes:
            continue
        if data.sparse:
            found.append(_Scored(node, key, "label", ends=end_labels(plan, node, reference)))
        else:
            assert data.feature_dim is not None
            blank = names.blank(data.feature_dim)
            found.append(_Scored(node, key, "frame" if blank is None else "label", blank))
    if not found:
        raise ExportError(
            "export --check: no output has labels or posteriors of labels by frame, and a target among the data keys. "
            "Give the layer a loss or a target, or name other layers by --outputs."
        )
    return found

"""The setting ``fine_tune`` when training starts: the parameters of another checkpoint, also for other labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.planning.fine_tuning import matching
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.errors import CheckpointDataError, CheckpointError, SettingError
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.fine_tuning import NewLabels
from returnn_tf.datasets.vocabulary import labels_of
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints import params as checkpoint_params
from returnn_tf.engine.checkpoints.checkpoint import StoredSpec
from returnn_tf.engine.checkpoints.selection import checkpoint_exists
from returnn_tf.graph.fine_tuning import SETTING, FineTuning, fine_tuning_of
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.logging.log import log

_LABELS = SETTING + "['new_labels']"
_MAX_LISTED = 10


def check_resumed(config: Config, path: str) -> None:
    """Check that a training whose first checkpoint is at a path is resumed, not started from there.

    :raises ConfigError: it is started by ``load``, with ``fine_tune``
    """
    given, asked = fine_tuning_of(config), CheckpointSettings(config)
    if given is not None and not path.startswith(asked.model + "."):
        raise SettingError(
            "%s: 'from' and load (%s) both say where training starts. Remove one of them." % (SETTING, path)
        )


def load(config: Config, net: Network) -> None:
    """Set the parameters of a network that is about to be fine-tuned; nothing without ``fine_tune``.

    :raises ConfigError: there is no checkpoint; vocabularies have no label in common, or fit no parameter
    :raises DataError: the checkpoint is damaged, or does not fit the network
    """
    given = fine_tuning_of(config)
    if given is None:
        return
    sources = plan_sources(net.plan, given)
    path = given.options.source
    values = checkpoint.read(path, list(sources))
    for name, rows in sources.items():
        if rows is not None:
            values[name] = rows.of(values[name], net.initial_value(net.plan.params[name]))
    variables = {name: net.stored_params[name] for name in sources}
    checkpoint_params.assign(variables, values, source="%s['from']: the checkpoint %s" % (SETTING, path))
    trained = sum(spec.size for spec in net.plan.params.values() if spec.trainable)
    total = sum(spec.size for spec in net.plan.params.values())
    log.write(2, "Fine-tuning %s: %s of %s numbers are trained." % (path, f"{trained:,}", f"{total:,}"))


class KeptRows:
    """The rows of a parameter that belong to labels.

    :param axis: of the labels
    :param pairs: (row in the checkpoint, row here) of the labels that both vocabularies have, and of further ones
    :param old: the number of labels of the old vocabulary
    :param mean: new rows are the mean of the old ones
    """

    def __init__(self, axis: int, pairs: list[tuple[int, int]], old: int, *, mean: bool) -> None:
        self.axis, self._pairs, self._old, self._mean = axis, pairs, old, mean

    def of(self, stored: NDArray[Any], initial: NDArray[Any]) -> NDArray[Any]:
        """Return the parameter.

        :param stored: of the checkpoint
        :param initial: its initial value here
        """
        result = np.moveaxis(np.array(initial), self.axis, 0)
        before = np.moveaxis(stored, self.axis, 0)
        if self._mean:
            result[:] = before[: self._old].mean(axis=0)
        there, here = zip(*self._pairs)
        result[list(here)] = before[list(there)]
        return np.moveaxis(result, 0, self.axis)


def plan_sources(plan: Plan, given: FineTuning) -> dict[str, Optional[KeptRows]]:
    """Return the parameters that come from the checkpoint, and what is kept of those with other labels.

    :raises ConfigError: there is no checkpoint; vocabularies have no label in common, or fit no parameter
    :raises DataError: the checkpoint is damaged, or does not fit the network
    """
    path = given.options.source
    where = SETTING + "['from']"
    if not checkpoint_exists(checkpoint.strip_suffix(path)):
        raise CheckpointError("%s: there is no checkpoint %s." % (where, path))
    stored = checkpoint.StoredValues(path).specs
    specs = plan.plain_params
    new = matching(specs.values(), given.options.new_layers, SETTING + "['new_layers']")
    taken = {name: spec for name, spec in specs.items() if name not in new}
    rows = {} if given.labels is None else _rows(plan, taken, stored, given.labels)
    lines = []
    for name, spec in taken.items():
        there = stored.get(name)
        if there is None:
            lines.append("missing: %s %s" % (name, list(spec.shape)))
        elif name not in rows and there.shape != spec.shape:
            lines.append("shape: %s is %s here, stored %s" % (name, list(spec.shape), list(there.shape)))
    if lines:
        text = ["%s: the checkpoint %s does not fit the network:" % (where, path), *lines[:_MAX_LISTED]]
        if len(lines) > _MAX_LISTED:
            text.append("... and %i more" % (len(lines) - _MAX_LISTED))
        text.append("Name layers that are new or of another size in 'new_layers', those of labels in 'new_labels'.")
        raise CheckpointDataError("\n  ".join(text))
    return {name: rows.get(name) for name in taken}


def _rows(
    plan: Plan, specs: Mapping[str, ParamSpec], stored: Mapping[str, StoredSpec], given: NewLabels
) -> dict[str, KeptRows]:
    """Return the rows of labels of all parameters that have some, by name.

    :param specs: the parameters that are taken from the checkpoint
    """
    old, new = (labels_of(vocab, "%s[%r]" % (_LABELS, key)) for key, vocab in (("old", given.old), ("new", given.new)))
    place = {label: index for index, label in reversed(list(enumerate(old)))}
    pairs = [(place[label], index) for index, label in enumerate(new) if label in place]
    if not pairs:
        raise SettingError(
            "%s: 'old' and 'new' have no label in common: old are %s, new are %s. Give the vocabulary of the "
            "checkpoint as 'old', or name the layers in 'new_layers'." % (_LABELS, _listed(old), _listed(new))
        )
    kept = len(pairs)
    pairs += [(len(old) + index, len(new) + index) for index in range(given.further)]
    sizes = len(old) + given.further, len(new) + given.further
    result: dict[str, KeptRows] = {}
    for pattern in given.layers:
        found = {}
        for name in matching(specs.values(), [pattern], _LABELS + "['layers']"):
            axis = _axis_of_labels(plan, specs[name], stored.get(name), sizes)
            if axis is not None:
                found[name] = KeptRows(axis, pairs, len(old), mean=given.init == "mean")
        if not found:
            raise SettingError(
                "%s['layers']: %r has no parameter with an axis of %d labels in the checkpoint and %d here. If the "
                "network has labels that the vocabulary lacks, e.g. the blank, set 'further'."
                % (_LABELS, pattern, *sizes)
            )
        result.update(found)
    counts = (kept, len(new), ", ".join(sorted(result)))
    log.write(2, "New labels: %d of %d are in the checkpoint, too: rows of %s" % counts)
    return result


def _axis_of_labels(plan: Plan, spec: ParamSpec, stored: Optional[StoredSpec], sizes: tuple[int, int]) -> Optional[int]:
    """Return the axis with an entry for each label; None if there is none.

    :param sizes: of the axis in the checkpoint, and here
    :raises ConfigError: there are two
    """
    if stored is None or len(stored.shape) != len(spec.shape):
        return None
    axes = [
        axis
        for axis, pair in enumerate(zip(stored.shape, spec.shape))
        if pair == sizes and _without(stored.shape, axis) == _without(spec.shape, axis)
    ]
    if len(axes) < 2:
        return axes[0] if axes else None
    of_layers = {
        axis
        for node in plan.all_nodes()
        for name, axis in (node.layer.channel_axes().items() if node.params else ())
        if node.params.get(name) is spec
    }
    if len(of_layers & set(axes)) != 1:
        raise SettingError(
            "%s['layers']: the parameter %r is of the shape %s, of which more than one axis may be that of the "
            "labels." % (_LABELS, spec.name, list(spec.shape))
        )
    return (of_layers & set(axes)).pop()


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _listed(labels: list[str]) -> str:
    return ", ".join(map(repr, labels[:5])) + (", ..." if len(labels) > 5 else "")

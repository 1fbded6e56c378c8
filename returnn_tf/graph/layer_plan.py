"""The results of planning layers, as records."""

from __future__ import annotations

import dataclasses
from typing import Optional

from returnn_tf.graph.sealing import tuple_or_view
from returnn_tf.tensor import Data


@dataclasses.dataclass(frozen=True, eq=False)
class LayerPlan:
    """The result of `Layer.template`. A class that finds more than the output returns a record that derives from this.

    Lists become tuples, and dicts read-only views.

    :param output: the template of the output, before what the options of all layers change
    """

    output: Data

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            if isinstance(value, (list, dict)):
                object.__setattr__(self, name, tuple_or_view(value))


@dataclasses.dataclass(frozen=True)
class HiddenState:
    """The state of a recurrent layer after the last frame.

    :param keys: names of the tensors; () means one tensor without a name
    :param parts: template of each tensor: they differ in the sizes of their feature axes only
    :param unit: the only unit for which such a state has a meaning; None: any unit with these keys
    """

    keys: tuple[str, ...]
    parts: tuple[Data, ...]
    unit: Optional[str] = None

    @property
    def count(self) -> int:
        """Return the number of tensors."""
        return len(self.parts)

    @property
    def sizes(self) -> list[int]:
        """Return the size of the feature axis of each tensor."""
        return [part.dim or 0 for part in self.parts]

    @property
    def feature_axis(self) -> Optional[int]:
        """Return the feature axis of the tensors."""
        return self.parts[0].feature_axis

    def __str__(self) -> str:
        """Return the names and sizes, e.g. "c (3) and h (3)"."""
        if not self.keys:
            return "one tensor without a name (%d)" % self.sizes[0]
        *others, last = ("%s (%d)" % item for item in zip(self.keys, self.sizes))
        return "%s and %s" % (", ".join(others), last) if others else last


@dataclasses.dataclass(frozen=True)
class BatchNorm:
    """A batch normalisation as planned for one layer: the options of `batch_norm`, with all defaults filled in."""

    use_shift: bool
    use_std: bool
    use_sample: float
    force_sample: bool
    momentum: float
    epsilon: float
    update_sample_only_in_training: bool
    delay_sample_update: bool
    param_version: int
    masked_time: bool

    def param_name(self, path: str, name: str) -> str:
        """Return the name of a parameter relative to the scope of the layer with this path."""
        if self.param_version == 2:
            return "batch_norm/v2_" + name
        if self.param_version == 1:
            return "batch_norm/" + name
        layer = path.rpartition("/")[2]
        return "batch_norm/%s_%s_output_%s" % (layer, layer, name)

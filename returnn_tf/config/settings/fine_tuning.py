"""Settings: training that starts with a model for other data."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional, Union

from returnn_tf.config.options import at_least, file_name, option
from returnn_tf.config.settings.catalog import register_settings
from returnn_tf.config.settings.declaration import SettingGroup, setting


def _is_path(value: str) -> Optional[str]:
    return file_name(value) if value else "must be the path of a checkpoint"


def _is_factor(value: Any) -> Optional[str]:
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return None if number and 0 < value < math.inf else "must be above 0"


def _are_factors(value: Any) -> Optional[str]:
    if not isinstance(value, dict):
        return _is_factor(value)
    for pattern, factor in value.items():
        if not isinstance(pattern, str) or factor is None or _is_factor(factor):
            return "must be a number above 0, or a dict from patterns to such numbers, but has %r: %r" % (
                pattern,
                factor,
            )
    return None


def _has_some(value: list[str]) -> Optional[str]:
    return None if value else "must name a layer"


@dataclasses.dataclass(frozen=True)
class Lora:
    """Adapters of low rank by Hu et al., arXiv 2106.09685: ``W + alpha / rank * A B``; A and B are trained."""

    layers: list[str] = option(
        help="layers or parameters whose products get adapters: names, or patterns", check=_has_some
    )
    rank: int = option(8, help="columns of A and rows of B", check=at_least(1))
    alpha: Optional[float] = option(
        None, help="alpha / rank is the factor on the product A B; default: rank", check=_is_factor
    )

    @property
    def scale(self) -> float:
        """Return the factor on the product of the two matrices."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


@dataclasses.dataclass(frozen=True)
class NewLabels:
    """Other labels than those of the checkpoint: parameters keep the rows of labels that both vocabularies have."""

    layers: list[str] = option(
        help="layers or parameters with an axis of labels, e.g. the output and the embedding: names, or patterns",
        check=_has_some,
    )
    old: dict[str, Any] = option(help="the vocabulary of the checkpoint: a dict as for datasets")
    new: dict[str, Any] = option(help="the vocabulary of this training")
    further: int = option(
        0, help="labels after those of the vocabulary, which stay at the end, e.g. 1 for the blank", check=at_least(0)
    )
    init: str = option(
        "layer",
        help="numbers of labels that are new: 'layer': as the layer says, 'mean': the mean over the old labels",
        choices=("layer", "mean"),
    )


@dataclasses.dataclass(frozen=True)
class FineTune:
    """The options of ``fine_tune``."""

    source: str = option(help="the checkpoint to start with", name="from", check=_is_path)
    freeze: list[str] = option([], help="layers or parameters that are not trained: names, or patterns")
    lora: Optional[dict[str, Any]] = option(
        None,
        help="train small matrices beside the large ones, of which checkpoints have the sum; all other parameters are "
        "frozen but those of new_labels, new_layers and train",
        group=Lora,
    )
    train: list[str] = option([], help="layers or parameters that are trained beside the adapters", needs="lora")
    new_labels: Optional[dict[str, Any]] = option(
        None, help="another vocabulary than that of the checkpoint", group=NewLabels
    )
    new_layers: list[str] = option(
        [], help="layers or parameters that are not taken from the checkpoint: names, or patterns"
    )
    rates: Union[None, float, dict[str, Any]] = option(
        None,
        help="factors on the learning rate: a dict from names or patterns, of which the last that fits counts, or the "
        "factor from each layer with a matrix, of the outermost network, to the one before it",
        check=_are_factors,
    )


@register_settings
class FineTuningSettings(SettingGroup):
    """Fine-tuning."""

    topic_order = 55

    fine_tune: Optional[dict[str, Any]] = setting(
        None,
        help="train from the parameters of another checkpoint, some of them frozen, by adapters, for other labels or "
        "with rates of their own: a dict",
        group=FineTune,
    )

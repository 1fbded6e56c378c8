"""The options of scheduled sampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.config.options import OptionError, option, probability


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
    """The options of ``scheduled_sampling``."""

    enable: bool = option(True, help="draw labels in training")
    gold_mixin_prob: Optional[float] = option(0.0, help="probability of taking the target instead", check=probability)


def gold_probability(given: Any) -> float:
    """Return the option ``scheduled_sampling`` as the probability of the target.

    :raises OptionError: neither a bool, a probability nor a dict, or not from 0 to 1
    """
    if isinstance(given, Mapping):
        opts = SamplingOptions(**given)
        gold = opts.gold_mixin_prob or 0.0 if opts.enable else 1.0
    elif isinstance(given, (bool, int, float)):
        gold = 1.0 - float(given)
    else:
        gold = -1.0
    if not 0.0 <= gold <= 1.0:
        raise OptionError(
            "scheduled_sampling must be True, a probability, or {'gold_mixin_prob': probability}, not %r." % (given,)
        )
    return gold

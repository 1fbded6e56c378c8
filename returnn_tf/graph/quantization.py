"""The setting ``quantize``: which parameters are stored as smaller numbers, in networks that are not trained."""

from __future__ import annotations

import dataclasses
from typing import Optional

from returnn_tf.config import Config
from returnn_tf.config.errors import SettingError
from returnn_tf.config.options import from_options, option
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.graph.rounded_variable import KINDS


@dataclasses.dataclass(frozen=True)
class Quantization:
    """The options of ``quantize``."""

    dtype: str = option("int8", help="type of the stored numbers", choices=tuple(KINDS))
    exclude: list[str] = option([], help="paths of layers, or patterns such as 'output/*', that stay float32")


def quantization_of(config: Config) -> Optional[Quantization]:
    """Return the options, or None if all parameters are floats.

    :raises ConfigError: an unknown option, a wrong value, or a setting that contradicts it
    """
    settings = NetworkSettings(config)
    given = settings.quantize
    if given is None:
        return None
    where = settings.describe_source("quantize")
    options: Quantization = from_options(
        Quantization, given if isinstance(given, dict) else {"dtype": given}, where=where
    )
    for name, value, wanted in (
        ("mixed_precision", settings.mixed_precision, None),
        ("float_dtype", settings.float_dtype, "float32"),
    ):
        if value != wanted:
            raise SettingError(
                "%s: products with %s have operands and results of float32, but %s is %r. Set %s to %r, or remove "
                "quantize." % (where, options.dtype, name, value, name, wanted)
            )
    return options


def refusal_to_train(where: str) -> SettingError:
    """Return the error for a training with rounded parameters.

    :param where: what sets it
    """
    return SettingError(
        "%s: rounded parameters can't be trained: rounding has no gradient, and updates are smaller than its steps. "
        "Train without it, and give it to tasks that only compute: ++quantize int8." % where
    )

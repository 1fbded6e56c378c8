"""Config files and the errors that a user can cause."""

from returnn_tf.config.config import Config, ConfigRecipe, config_from_recipe
from returnn_tf.config.epoch_value import WrapEpochValue
from returnn_tf.config.errors import ConfigError, DataError, did_you_mean, nearest_name

__all__ = [
    "Config",
    "ConfigError",
    "ConfigRecipe",
    "DataError",
    "WrapEpochValue",
    "config_from_recipe",
    "did_you_mean",
    "nearest_name",
]

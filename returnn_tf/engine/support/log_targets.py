"""The log of the program as a config wants it."""

from __future__ import annotations

from returnn_tf.config import Config
from returnn_tf.config.errors import ConfigError, SettingError
from returnn_tf.config.settings import misspelt_keys
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.logging.log import log


def configure_log(config: Config) -> None:
    """Set up the log from ``log``, ``log_verbosity`` and ``log_format``, and warn of misspelt keys.

    :raises ConfigError: a log file can't be written, or a level or format is wrong
    """
    try:
        log.configure(
            [str(target) for target in LoggingSettings(config).log],
            LoggingSettings(config).log_verbosity,
            LoggingSettings(config).log_format,
        )
    except OSError as exc:
        raise SettingError(
            "%s: %r can't be written: %s" % (LoggingSettings(config).describe_source("log"), exc.filename, exc.strerror)
        ) from None
    except ConfigError:
        raise
    except ValueError as exc:
        raise SettingError(str(exc)) from None
    for key, suggestion in misspelt_keys(config):
        log.warn("%s is not a known setting. Did you mean %r?" % (config.describe_source(key), suggestion))

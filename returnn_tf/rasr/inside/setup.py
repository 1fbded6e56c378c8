"""The config of a run inside of RASR, from the text that RASR hands over."""

from __future__ import annotations

import os

from returnn_tf.config import Config, ConfigError
from returnn_tf.config.settings import setting_by_key
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.logging.log import log

ACTIONS = ("train", "forward", "nop")


def parse_pairs(text: str) -> dict[str, str]:
    """Return the pairs of ``action:train,configfile:my.config,...``; a file name alone is the ``configfile``.

    :raises ConfigError: a part is no pair, or there is no config file of that name
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) == 1 and ":" not in parts[0]:
        parts = ["configfile:" + parts[0]]
    for part in parts:
        if ":" not in part:
            raise ConfigError("pymod-config: %r must be a list key:value,key:value, but has %r" % (text, part))
    pairs = dict(part.split(":", 1) for part in parts)
    if pairs.get("action", "forward") not in ACTIONS:
        raise ConfigError("pymod-config: action:%s is unknown; there are %s" % (pairs["action"], ", ".join(ACTIONS)))
    path = pairs.get("configfile")
    if not path or not os.path.isfile(path):
        raise ConfigError(
            "pymod-config: %s (current directory: %s)"
            % ("the config file %r does not exist" % path if path else "configfile:<config> is missing", os.getcwd())
        )
    return pairs


def read_config(pairs: dict[str, str], task: str) -> Config:
    """Return the config of the pairs, which are also set in it; the log is set up.

    :param task: of the config, train or forward
    """
    given = [(key, value) for key, value in pairs.items() if key not in ("action", "configfile")]
    config = Config.from_files([pairs["configfile"]], [*given, ("task", task)])
    settings = LoggingSettings(config)
    log.configure([str(target) for target in settings.log], settings.log_verbosity, settings.log_format)
    for key, value in given:
        if key not in setting_by_key():
            log.write(2, "warning: pymod-config: %s:%s is no setting; only code of the config reads it" % (key, value))
    return config

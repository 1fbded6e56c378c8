"""``.<model>.batches.json``: the sequences by length that were found for ``batch_size = "auto"``.

The file stays beside the checkpoints, so that a training that is resumed has the same batches, on whatever device, and
other tasks have those of the training.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.errors import BatchError, SettingDataError
from returnn_tf.config.options import seqs_by_length
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.datasets.config import auto_keys, without_auto
from returnn_tf.engine.support import atomic_files as files

_MAX_BYTES = 1 << 20
_FORMAT = 1
#: The share of padding that batches may have, unless the config sets another.
_PAD_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class BatchTable:
    """What was found.

    :param max_seqs_by_length: as in the setting of this name
    :param device: on which it was found
    :param limit: bytes that steps could use there
    :param found_for: settings and network on which it depends, as texts by name
    """

    max_seqs_by_length: Mapping[int, int]
    device: str
    limit: int
    found_for: Mapping[str, str]

    def write(self, path: str) -> None:
        """Write the file."""
        files.write_text(path, json.dumps({"format": _FORMAT, **dataclasses.asdict(self)}, indent=1) + "\n")

    def fixes(self, config: Config) -> Config:
        """Return the config with the numbers in place of "auto"."""
        share = DataSettings(config).max_pad_share
        values: dict[str, Any] = {
            "max_seqs_by_length": dict(self.max_seqs_by_length),
            "max_pad_share": _PAD_SHARE if share is None else share,
        }
        return derived(without_auto(config), values)


def path_of(model: str) -> str:
    """Return the path of the file beside the checkpoints with a path prefix."""
    folder, name = os.path.split(model)
    return os.path.join(folder, ".%s.batches.json" % name)


def read(path: str) -> Optional[BatchTable]:
    """Return the content of a file; None if there is none.

    :raises DataError: it is damaged
    """
    try:
        found = files.read_json(path, _MAX_BYTES)
        by_length = {int(frames): count for frames, count in found["max_seqs_by_length"].items()}
        table = BatchTable(by_length, str(found["device"]), int(found["limit"]), dict(found["found_for"]))
        fault = seqs_by_length(by_length)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        fault = "can't be read: %s" % exc
    if fault:
        raise SettingDataError(
            "%s: %s. It has the batches for batch_size = 'auto'. Remove it to have them found again." % (path, fault)
        )
    return table


def known(config: Config) -> Config:
    """Return the config with the numbers that the training has found, for tasks that use its model.

    :raises ConfigError: ``batch_size`` is "auto", but no training has found numbers
    """
    settings = DataSettings(config)
    if not auto_keys(settings.batch_size):
        return config
    model = CheckpointSettings(config).model
    table = read(path_of(model)) if model else None
    if table is None:
        where = settings.describe_source("batch_size")
        text = "%s is 'auto', but there is no %s, where a training keeps what it finds. Give a number of frames, e.g. "
        raise BatchError((text + "++batch_size 10000") % (where, path_of(model or "<model>")))
    return table.fixes(config)

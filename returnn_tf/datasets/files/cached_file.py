"""``CachedFile("corpus.zip")`` in the options of a dataset: the path of a copy on the local disk."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from returnn_tf.config.option_values import map_values
from returnn_tf.datasets.files.copying import copy_to_cache


@dataclasses.dataclass(frozen=True)
class CachedFile:
    """Stands for a copy of a file on the local disk, anywhere in the options of a dataset.

    :param filename: of the original
    """

    filename: str

    def __fspath__(self) -> str:
        return self.get_file()

    def get_file(self) -> str:
        """Return the path of the copy, which is made if there is none; that of the original if it is impossible."""
        return copy_to_cache(os.fspath(self.filename))


def with_local_copies(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a dataset with each `CachedFile` replaced by the path of its copy."""
    return {name: map_values(value, CachedFile, CachedFile.get_file) for name, value in options.items()}

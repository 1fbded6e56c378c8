"""``from returnn.util.file_cache import CachedFile``: copies of files on the local disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Union

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.datasets.files import CachedFile

register_compat(__name__, "returnn.util.file_cache")

__all__ = ["CachedFile", "FileCache", "get_instance"]


class FileCache:
    """The cache of the machine, whose folder is that of `returnn_tf.datasets.files`."""

    def __init__(self, **options: Any) -> None:
        if options:
            raise TypeError(
                "FileCache: the options %s are not supported; the folder is set by RETURNN_TF_FILE_CACHE"
                % ", ".join(sorted(options))
            )

    def get_file(self, src_filename: Union[str, os.PathLike[str]]) -> str:
        """Return the path of a copy of a file."""
        return CachedFile(os.fspath(src_filename)).get_file()

    def release_files(self, src_filenames: Union[str, Iterable[str]]) -> None:
        """Do nothing: copies are in use until the process ends."""


def get_instance() -> FileCache:
    """Return the cache."""
    return FileCache()

"""Copies of files on the local disk of the machine, for corpora on network storage."""

from returnn_tf.datasets.files.cached_file import CachedFile, with_local_copies
from returnn_tf.datasets.files.copying import local_copy

ERROR_TOPIC = "data-files"

__all__ = ["CachedFile", "local_copy", "with_local_copies"]

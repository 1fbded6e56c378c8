"""Copies of files on the local disk of the machine, for corpora on network storage."""

from returnn_tf.datasets.files.copying import CachedFile, local_copy, with_local_copies

__all__ = ["CachedFile", "local_copy", "with_local_copies"]

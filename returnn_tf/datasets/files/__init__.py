"""Copies of files on the local disk of the machine, for corpora on network storage."""

from returnn_tf.datasets.files.copying import CachedFile, cache_options, local_copy, set_up_cache, with_local_copies

__all__ = ["CachedFile", "cache_options", "local_copy", "set_up_cache", "with_local_copies"]

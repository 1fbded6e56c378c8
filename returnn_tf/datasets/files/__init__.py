"""Files of corpora: remote ones, and copies on the local disk of the machine."""

from returnn_tf.datasets.files.copying import (
    CachedFile,
    cache_options,
    exists,
    file_size,
    local_copy,
    matching_files,
    path_or_content,
    set_up_cache,
    with_local_copies,
)
from returnn_tf.datasets.files.remote import is_url

__all__ = [
    "CachedFile",
    "cache_options",
    "exists",
    "file_size",
    "is_url",
    "local_copy",
    "matching_files",
    "path_or_content",
    "set_up_cache",
    "with_local_copies",
]

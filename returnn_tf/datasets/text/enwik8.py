"""Enwik8Corpus: the first 100 MB of the English Wikipedia, byte by byte (Hutter prize)."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config.errors import TextDataError, TextError
from returnn_tf.config.options import at_least, option
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.registry import register_dataset

_FILE, _ZIP = "enwik8", "enwik8.zip"
_SIZE = 100_000_000
_PARTS = {"training": (0, 90_000_000), "validation": (90_000_000, 95_000_000), "test": (95_000_000, _SIZE)}
_NUM_BYTES = 256


@register_dataset()
class Enwik8Corpus(Dataset):
    """Windows of the bytes of enwik8: "data", and as "classes" the byte after each of them.

    Nothing is downloaded: ``path`` is a folder with ``enwik8.zip`` or the file in it. The usual parts are the first
    90 MB for training, and 5 MB each for validation and test.

    >>> from returnn_tf.datasets import Dataset
    >>> train = {"class": "Enwik8Corpus", "path": "corpora", "subset": "training", "seq_len": 200}
    >>> dataset = Dataset.from_config(train)   # doctest: +SKIP
    """

    @dataclass
    class Options(Dataset.Options):
        path: Union[str, os.PathLike[str]] = option(help="folder with enwik8.zip or enwik8")
        subset: str = option(help="part of the text", choices=_PARTS)
        seq_len: int = option(help="bytes of a window", check=at_least(1))
        batch_num_seqs: Optional[int] = option(
            None,
            help="sequences per batch with which states continue from batch to batch",
            unsupported="states do not continue between batches; choose a longer seq_len",
        )
        subsets: Optional[dict[str, Any]] = option(
            None, help="sizes of other parts", unsupported="the parts are 90, 5 and 5 MB, as they are published"
        )

    def setup(self) -> None:
        """Read the part of the text."""
        begin, end = _PARTS[self.opts.subset]
        self._bytes = np.frombuffer(self._content()[begin:end], np.uint8)
        spec = DataSpec(dim=_NUM_BYTES, ndim=1, dtype="uint8", labels=tuple(map(chr, range(_NUM_BYTES))))
        self.data_specs = {"data": spec, "classes": spec}
        self._num_seqs: int = (len(self._bytes) - 2) // self.opts.seq_len + 1

    def _content(self) -> bytes:
        folder = os.fspath(self.opts.path)
        plain, packed = os.path.join(folder, _FILE), os.path.join(folder, _ZIP)
        path = plain if os.path.isfile(plain) else packed
        if not os.path.isfile(path):
            raise TextError(
                "%s: there is neither %r nor %r in %r, and nothing is downloaded. Get it from "
                "http://mattmahoney.net/dc/enwik8.zip" % (self._owner(), _FILE, _ZIP, folder)
            )
        try:
            if path == plain:
                with open(path, "rb") as file:
                    content = file.read(_SIZE + 1)
            else:
                with zipfile.ZipFile(path) as archive, archive.open(_FILE) as member:
                    content = member.read(_SIZE + 1)
        except (OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as exc:
            raise TextDataError("%s: %r can't be read: %s" % (self._owner(), path, exc)) from exc
        if len(content) != _SIZE:
            much = "more than %d" % _SIZE if len(content) > _SIZE else "%d" % len(content)
            raise TextDataError("%s: %r has %s bytes, not %d; is it enwik8?" % (self._owner(), path, much, _SIZE))
        return content

    @property
    def num_seqs(self) -> int:
        """Return the number of windows; the last one may be shorter."""
        return self._num_seqs

    def lengths(self, index: int) -> dict[str, int]:
        """Return the bytes of a window."""
        size = min(self.opts.seq_len, len(self._bytes) - 1 - index * self.opts.seq_len)
        return {"data": size, "classes": size}

    def seq_lengths(self) -> NDArray[Any]:
        """Return the bytes of each window, [num_seqs]."""
        lengths = np.full(self._num_seqs, self.opts.seq_len, np.int64)
        lengths[-1] = self.lengths(self._num_seqs - 1)["data"]
        return lengths

    def read(self, index: int, epoch: int, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return a window, and the same one byte later."""
        start, size = index * self.opts.seq_len, self.lengths(index)["data"]
        return {key: self._bytes[start + (key == "classes") :][:size] for key in keys}

"""``from returnn.datasets.hdf import SimpleHDFWriter``: writing HDF files, for scripts and job managers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from returnn_tf.compat.imports.stand_ins import register_compat
from returnn_tf.datasets.hdf.dataset import HDFDataset
from returnn_tf.datasets.hdf.writer import HDFWriter

register_compat(__name__, "returnn.datasets.hdf", "HDFDataset")

__all__ = ["HDFDataset", "SimpleHDFWriter"]


class SimpleHDFWriter(HDFWriter):
    """Writes sequences to an HDF file, see `HDFWriter`; the file may be given as a path object, too."""

    def __init__(
        self,
        filename: Union[str, os.PathLike[str]],
        dim: Optional[int],
        labels: Optional[Sequence[str]] = None,
        ndim: Optional[int] = None,
        extra_type: Optional[Mapping[str, tuple[Optional[int], int, str]]] = None,
        *,
        extend_existing_file: bool = False,
        extra_labels: Optional[Mapping[str, Sequence[str]]] = None,
        **others: Any,
    ) -> None:
        if any(others.values()):
            raise TypeError("SimpleHDFWriter: there is no option %s" % ", ".join(sorted(others)))
        super().__init__(
            os.fspath(filename),
            dim,
            labels=labels,
            ndim=ndim,
            extra_type=extra_type,
            extend_existing_file=extend_existing_file,
            extra_labels=extra_labels,
        )

"""Files with mean and variance of features and targets, for StereoHdfDataset."""

from __future__ import annotations

from typing import Optional

import h5py
import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import DataError
from returnn_tf.datasets.core.safe_files import check_regular, read_text
from returnn_tf.datasets.hdf.claims import impossible_size
from returnn_tf.datasets.hdf.temporary import Output, not_written

GROUPS = {"data": "inputs", "classes": "outputs"}


def files_of_bundle(path: str) -> list[str]:
    """Return the HDF files that a ``.bundle`` file lists, one per line; another file stands for itself."""
    if not path.endswith(".bundle"):
        return [path]
    files = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if not files:
        raise DataError("bundle %r lists no HDF files" % path)
    return files


def read_normalization(path: str, key: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation [dim] of "data" or "classes".

    :raises DataError: the file is missing, lacks them, or has a variance that is not positive
    """
    try:
        check_regular(path)
        with h5py.File(path, "r") as file:
            group = file[GROUPS[key]]
            for name in ("mean", "variance"):
                claims = impossible_size(group[name])
                if claims:
                    raise DataError("normalization file %r: %s/%s %s" % (path, GROUPS[key], name, claims))
            mean, variance = (np.asarray(group[name][()], np.float64).reshape(-1) for name in ("mean", "variance"))
    except (OSError, KeyError, ValueError, TypeError) as exc:
        raise DataError("normalization file %r has no mean and variance of %s: %s" % (path, GROUPS[key], exc)) from None
    if mean.shape != variance.shape or not (variance > 0).all() or not np.isfinite(mean).all():
        raise DataError("normalization file %r: mean and variance of %s don't fit" % (path, GROUPS[key]))
    return mean, np.sqrt(variance)


def create_normalization_file(
    bundle: str, output: str, dtype: str = "float64", flag_include_outputs: bool = True
) -> None:
    """Write mean, mean of squares, variance and number of frames of all sequences of a bundle.

    :param dtype: of the sums
    :param flag_include_outputs: also those of the targets
    """
    names = list(GROUPS.values()) if flag_include_outputs else ["inputs"]
    sums: dict[str, Optional[NDArray[np.float64]]] = dict.fromkeys(names)
    counts = dict.fromkeys(names, 0)
    for path in files_of_bundle(bundle):
        with h5py.File(path, "r") as file:
            for name in names:
                for entry in file[name].values():
                    frames = np.asarray(entry[()], dtype)
                    found = np.stack([frames.sum(axis=0), (frames**2).sum(axis=0)])
                    old = sums[name]
                    sums[name] = found if old is None else old + found
                    counts[name] += len(frames)
    try:
        target = Output(output)
    except OSError as exc:
        raise not_written(output, exc) from exc
    try:
        assert target.file is not None
        with target.reporting():
            for name in names:
                total = sums[name]
                if total is None or not counts[name]:
                    raise DataError("bundle %r has no frames of %s" % (bundle, name))
                mean, squares = total / counts[name]
                values = {"mean": mean, "meanOfSquares": squares, "variance": squares - mean**2}
                for key, value in {**values, "totalNumberOfFrames": counts[name]}.items():
                    target.file["%s/%s" % (name, key)] = value
        target.complete()
        target.publish()
    finally:
        target.abort()

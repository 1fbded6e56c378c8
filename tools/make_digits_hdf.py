#!/usr/bin/env python3
"""Writes ``demos/digits/digits.hdf``: the 1797 scanned digits which the digit-line demo is made of, as one small file.

Only needed to make that file anew; the file is part of the repository. Needs scikit-learn, which ships the data::

    pip install scikit-learn h5py
    python tools/make_digits_hdf.py demos/digits/digits.hdf

Layout: ``images`` uint8 [1797, 8 rows, 8 columns], 0 (paper) .. 16 (ink); ``labels`` uint8 [1797], the digit;
attributes at the root say where the data come from and under which licence they stand.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import h5py
import numpy as np

SOURCE = {
    "title": "Optical Recognition of Handwritten Digits, test set",
    "authors": "E. Alpaydin, C. Kaynak",
    "publisher": "UCI Machine Learning Repository",
    "doi": "10.24432/C50P49",
    "licence": "CC BY 4.0, https://creativecommons.org/licenses/by/4.0/",
    "changes": "pixel counts stored as uint8 images of 8 x 8; nothing else was changed",
}


def write_digits(path: str, images: Any, labels: Any) -> None:
    """Write the images as they are described above, to a temporary file first, so that the file is whole or absent.

    :param path: the file to write; an existing one is replaced
    :param images: [N, 8, 8], whole numbers 0 .. 16
    :param labels: [N], 0 .. 9
    """
    images, labels = np.asarray(images), np.asarray(labels)
    if images.shape != (len(labels), 8, 8) or images.min() < 0 or images.max() > 16 or (images % 1).any():
        raise ValueError("images must be [%d, 8, 8] of whole numbers 0 .. 16, got %s" % (len(labels), images.shape))
    temp = "%s.tmp%d" % (path, os.getpid())
    try:
        with h5py.File(temp, "w") as file:
            for name, array in [("images", images), ("labels", labels)]:
                file.create_dataset(name, data=array.astype("uint8"), compression="gzip", compression_opts=9)
            file["images"].attrs["axes"] = "image, row (top first), column (left first); 0 is paper, 16 is ink"
            for key, value in SOURCE.items():
                file.attrs[key] = value
        os.replace(temp, path)
    finally:
        if os.path.exists(temp):
            os.remove(temp)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", help="the file to write, for example demos/digits/digits.hdf")
    args = parser.parse_args()
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        parser.error("scikit-learn is not installed: pip install scikit-learn")
    digits = load_digits()
    write_digits(args.output, digits.images, digits.target)
    print("%s: %d images, %d bytes" % (args.output, len(digits.target), os.path.getsize(args.output)))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The same as ``returnn-tf tool analyze-dataset-batches``, from a checkout that is not installed."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

from returnn_tf.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["tool", "analyze-dataset-batches", *sys.argv[1:]]))

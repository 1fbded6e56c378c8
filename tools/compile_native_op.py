#!/usr/bin/env python3
"""The same as ``returnn-tf native build``, or ``native list`` for ``--list``, from a checkout that is not installed."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from returnn_tf.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["native", "list"] if sys.argv[1:] == ["--list"] else ["native", "build", *sys.argv[1:]]))

#!/usr/bin/env python3
"""The same as ``returnn-tf``, with the package of this checkout, whatever is installed: ``rnn.py my.config``."""

from __future__ import annotations

import os
import sys

_here = os.path.dirname(os.path.realpath(__file__))
# not the checkout itself, whose tests/ and setup.py would hide files of these names beside a config
sys.path[:] = [os.path.join(_here, "i6")] + [path for path in sys.path if os.path.realpath(path or ".") != _here]

from returnn_tf.cli.main import main  # noqa: E402  the path has to be set first

if __name__ == "__main__":
    sys.exit(main())

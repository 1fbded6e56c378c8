"""``python -m returnn_tf``, which is the same as the command ``returnn-tf``."""

from __future__ import annotations

import sys

from returnn_tf.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

"""``python -m returnn_tf``, which is the same as the command ``returnn-tf``."""

from __future__ import annotations

import importlib
import sys

# by name, as the subcommands are: this module and cli/ share a floor
main = importlib.import_module("returnn_tf.cli.main").main

if __name__ == "__main__":
    sys.exit(main())

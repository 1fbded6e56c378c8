"""The names that job managers and scripts import from RETURNN, without TensorFlow; `returnn_tf.compat` has them."""

from __future__ import annotations

import os
import sys

_root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path.insert(0, _root)  # for the package of this folder, whatever is installed
try:
    from returnn_tf.compat.imports.stand_ins import serve_package
finally:
    sys.path.remove(_root)

serve_package(__name__)

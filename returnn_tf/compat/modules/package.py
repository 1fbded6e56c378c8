"""``import returnn``: the package itself."""

from __future__ import annotations

import os

from returnn_tf._version import __version__
from returnn_tf.compat.imports.stand_ins import register_compat

register_compat(__name__, "returnn")

__long_version__ = __version__

#: Scripts look for files beside the folder of this one: it is that of the room.
__file__ = os.path.join(os.path.dirname(os.path.dirname(__file__)), "__init__.py")

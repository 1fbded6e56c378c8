"""``import returnn``: the package itself."""

from __future__ import annotations

from returnn_tf._version import __version__
from returnn_tf.config.compat_modules import register_compat

register_compat(__name__, "returnn")

__long_version__ = __version__

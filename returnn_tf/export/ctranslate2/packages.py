"""The package ctranslate2."""

from __future__ import annotations

import warnings
from typing import Any

from returnn_tf.config.errors import ExportDataError
from returnn_tf.util.installing import install_command


def package() -> Any:
    """Return the module.

    :raises DataError: it is not installed, or can't be imported
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ctranslate2
    except ImportError as exc:
        raise ExportDataError(
            "export to ctranslate2 needs ctranslate2: %s (%s)" % (install_command("ctranslate2"), exc)
        ) from exc
    return ctranslate2

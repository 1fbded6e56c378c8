"""The optional packages that convert to ONNX and run what was converted."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from returnn_tf.config.errors import ExportDataError
from returnn_tf.logging.log import log
from returnn_tf.util.installing import install_command
from returnn_tf.util.quiet import stderr_to_log


class Packages(NamedTuple):
    """The imported packages."""

    onnx: Any
    tf2onnx: Any
    runtime: Any


def packages() -> Packages:
    """Return the packages.

    :raises DataError: one is not installed, or can't be imported; says what to do
    """
    try:
        with quiet():
            import onnx
            import onnxruntime
            import tf2onnx
            import tf2onnx.optimizer
    except (ImportError, AttributeError) as exc:  # a newer onnx lacks a type in the ml_dtypes of TensorFlow
        raise ExportDataError(
            "export to onnx needs tf2onnx, onnx (< 1.19) and onnxruntime: %s (%s)" % (install_command("onnx"), exc)
        ) from exc
    return Packages(onnx, tf2onnx, onnxruntime)


class Complaints(logging.Handler):
    """Collects what the converter logs.

    Its errors become `errors`, (name of the op or "", text), the rest goes to our log at the lowest level.
    """

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take a message."""
        text = record.getMessage()
        if record.levelno >= logging.ERROR and record.args and str(record.msg).startswith(_ABOUT_OPS):
            cause = str(record.exc_info[1]) if record.exc_info else text
            self.errors.append((str(record.args[0] if isinstance(record.args, tuple) else ""), cause))
        log.write(4, "%s: %s" % (record.name, text))


#: The messages of the converter that mean that an op was not converted; the converter continues after them.
_ABOUT_OPS = ("Tensorflow op [", "Failed to convert node")


@contextlib.contextmanager
def quiet() -> Iterator[Complaints]:
    """Keep the output, logs and warnings of the packages out of the terminal; return their errors about ops."""
    logger, handler = logging.getLogger("tf2onnx"), Complaints()
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        with warnings.catch_warnings(), stderr_to_log():
            warnings.simplefilter("ignore")
            yield handler
    finally:
        logger.propagate = before
        logger.removeHandler(handler)

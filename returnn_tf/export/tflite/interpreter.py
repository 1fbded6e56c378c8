"""TFLite's interpreter, as a program in Python uses it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from returnn_tf.config import DataError
from returnn_tf.util.lazy_tf import tf
from returnn_tf.util.quiet import stderr_to_log


def run_model(path: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Run the signature of a TFLite file.

    :param feed: arrays by input name; inputs that the file does not have are ignored
    :return: arrays by output name
    :raises DataError: the interpreter can't run the file, e.g. as it has no Flex delegate
    """
    try:
        with stderr_to_log():
            runner = tf.lite.Interpreter(model_path=path).get_signature_runner()
            return dict(runner(**{name: feed[name] for name in runner.get_input_details()}))
    except (RuntimeError, ValueError) as exc:
        reason = str(exc).strip().splitlines()[0]
        raise DataError("TFLite's interpreter can't run %s: %s" % (os.path.basename(path), reason)) from exc


def tensor_names(path: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names of the tensors in a TFLite file by the names of its inputs and outputs."""
    with stderr_to_log():
        runner = tf.lite.Interpreter(model_path=path).get_signature_runner()
    parts = (runner.get_input_details(), runner.get_output_details())
    inputs, outputs = ({name: info["name"] for name, info in details.items()} for details in parts)
    return inputs, outputs

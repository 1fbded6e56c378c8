"""TensorFlow's converter to TFLite, with errors that list the ops it has no form for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from returnn_tf.config import DataError
from returnn_tf.export.layer_table import choose_another
from returnn_tf.graph.layer import Node
from returnn_tf.util.lazy_tf import tf
from returnn_tf.util.quiet import stderr_to_log

#: Values of the option ``quantize``.
QUANTIZE = ("none", "float16", "dynamic_range", "int8")
#: Inputs by name, by which the converter finds out the ranges of activations.
Calibration = Sequence[Mapping[str, Any]]
_LISTS = "TensorListReserve"
TARGET = "tflite"
Layers = Mapping[Node, list[str]]


class ConversionError(Exception):
    """The converter has no form for a graph.

    :param ops: types of the ops that TFLite does not have; `is_loop`: those that hold values of the steps of a loop
    """

    def __init__(self, text: str, ops: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.ops = sorted(ops)

    @property
    def is_loop(self) -> bool:
        """Return whether an array over the steps of a loop is the reason."""
        return _LISTS in self.ops


def convert(
    saved_model: str, *, select_tf_ops: bool, quantize: str = "none", calibration: Calibration = ()
) -> tuple[bytes, list[str]]:
    """Convert the signature of a SavedModel.

    :param select_tf_ops: allow ops that only TensorFlow has; as few as possible are used
    :param quantize: one of `QUANTIZE`
    :param calibration: for int8
    :return: the content of the file, and the types of TensorFlow's ops in it
    :raises ConversionError: with the ops that are missing
    """
    if not select_tf_ops:
        return _convert(saved_model, quantize, calibration), []
    user_ops: list[str] = []
    lower_lists = True
    while True:
        try:
            content = _convert(
                saved_model, quantize, calibration, tf_ops=True, user_ops=user_ops, lower_lists=lower_lists
            )
            return content, flex_ops(content)
        except ConversionError as exc:
            new = [op for op in exc.ops if op not in user_ops and op != _LISTS and not op.endswith("PyFuncStateless")]
            if lower_lists and (exc.is_loop or not exc.ops):
                lower_lists = False
            elif new:
                user_ops += new  # ops that TensorFlow has, but no default build of the Flex delegate
            else:
                raise


def _convert(
    saved_model: str,
    quantize: str,
    calibration: Calibration,
    *,
    tf_ops: bool = False,
    user_ops: Sequence[str] = (),
    lower_lists: bool = True,
) -> bytes:
    with stderr_to_log():
        converter = tf.lite.TFLiteConverter.from_saved_model(saved_model)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    if tf_ops:
        converter.target_spec.supported_ops.append(tf.lite.OpsSet.SELECT_TF_OPS)
        converter.target_spec.experimental_select_user_tf_ops = list(user_ops)
        converter._experimental_lower_tensor_list_ops = lower_lists  # arrays of loops as tensors
    if quantize != "none":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantize == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if quantize == "int8":
        converter.representative_dataset = lambda: map(dict, calibration)
    try:
        with stderr_to_log():
            return bytes(converter.convert())
    except Exception as exc:  # the converter has no public exception class
        text = str(exc)
        raise ConversionError(_reason(text), _missing_ops(text)) from exc


def _missing_ops(text: str) -> set[str]:
    """Return the types of ops that a message of the converter lists."""
    found: set[str] = set()
    for kind in ("TF Select ops", "Custom ops"):
        for line in re.findall(r"^%s: (.+)$" % kind, text, re.MULTILINE):
            found.update(name.strip() for name in line.split(","))
    if not found and re.search(r"TensorList|tensor list", text):
        found.add(_LISTS)
    return found


def _reason(text: str) -> str:
    """Return the first error in a message of the converter, without the places in the sources."""
    errors = re.findall(r"error: (?:loc\(.*?\)\)?: )?([^\n]+)", text)
    reason = errors[0] if errors else text.strip().splitlines()[0]
    return re.sub(r"^loc\(.*\): ", "", reason)


def flex_ops(content: bytes) -> list[str]:
    """Return the types of TensorFlow's ops in a TFLite file: custom ops named ``Flex<type>``."""
    from tensorflow.lite.python import schema_py_generated

    model = schema_py_generated.Model.GetRootAs(content)
    codes = [model.OperatorCodes(index).CustomCode() or b"" for index in range(model.OperatorCodesLength())]
    return sorted(code[4:].decode("ascii") for code in codes if code.startswith(b"Flex"))


"""See `returnn_tf.export.layers_of_ops.layers_of_ops`."""


def no_form(exc: ConversionError, layers: Layers, *, batch: int, select_tf_ops: bool) -> str:
    """Say which layers need what TFLite does not have, and what to choose instead.

    :param batch: the option; 0: any number of sequences
    :param select_tf_ops: the option
    """
    named = ["%r (class %r: %s)" % (node.path, node.layer.class_name, ", ".join(ops)) for node, ops in layers.items()]
    if named:
        what = "TFLite has no ops for the %s %s" % ("layer" if len(named) == 1 else "layers", ", ".join(named))
    elif exc.ops:
        what = "TFLite has no ops for %s" % ", ".join(exc.ops)
    else:
        what = "TFLite's converter fails: %s" % exc
    ways = []
    if exc.is_loop and not batch:
        ways.append("Fix the number of sequences by the option batch 1, as loops need.")
    if not select_tf_ops:
        ways.append("Allow ops of TensorFlow by the option select_tf_ops (programs then need the Flex delegate).")
    return _message(what, [*ways, choose_another(_classes(layers), TARGET)])


def refused(exc: DataError, layers: Layers) -> str:
    """Say which layer has an op that the interpreter refuses."""
    named = ", ".join("the layer %r (class %r)" % (node.path, node.layer.class_name) for node in layers)
    reason = re.sub(r"tensorflow/\S+ |\.?\s*Node number.*", "", str(exc).partition(": ")[2])
    what = "TFLite's interpreter refuses an op%s: %s" % (" of " + named if named else "", reason)
    return _message(what, [choose_another(_classes(layers), TARGET)])


def ops_of_kernel(text: str, types: Iterable[str]) -> list[str]:
    """Return the ops of TensorFlow that an error of the interpreter is about, e.g. "RFFT" for "(RFFT2D) failed".

    :param types: of the ops in the graph
    """
    kernels = [name.replace("_", "") for name in re.findall(r"\(([A-Z0-9_]+)\) failed", text)]
    return sorted(name for name in types if any(kernel.startswith(name.upper()) for kernel in kernels))


def _classes(layers: Layers) -> list[str]:
    return sorted({node.layer.class_name for node in layers})


def _message(what: str, ways: Iterable[str]) -> str:
    return " ".join(["export to tflite: %s." % what, *(way for way in ways if way)])

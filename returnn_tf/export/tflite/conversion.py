"""TensorFlow's converter to TFLite, with errors that list the ops it has no form for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from returnn_tf.util.lazy_tf import tf
from returnn_tf.util.quiet import stderr_to_log

#: Values of the option ``quantize``.
QUANTIZE = ("none", "float16", "dynamic_range")
_LISTS = "TensorListReserve"


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


def convert(saved_model: str, *, select_tf_ops: bool, quantize: str = "none") -> tuple[bytes, list[str]]:
    """Convert the signature of a SavedModel.

    :param select_tf_ops: allow ops that only TensorFlow has; as few as possible are used
    :param quantize: one of `QUANTIZE`
    :return: the content of the file, and the types of TensorFlow's ops in it
    :raises ConversionError: with the ops that are missing
    """
    if not select_tf_ops:
        return _convert(saved_model, quantize), []
    user_ops: list[str] = []
    lower_lists = True
    while True:
        try:
            content = _convert(saved_model, quantize, tf_ops=True, user_ops=user_ops, lower_lists=lower_lists)
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
    try:
        with stderr_to_log():
            return bytes(converter.convert())
    except Exception as exc:  # the converter has no class of its own that is public
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

"""Writes a network, or another function of tensors, as one ONNX file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.onnx.conversion import check_model, convert, name_axes, write_model
from returnn_tf.export.onnx.names import axis_names
from returnn_tf.export.tensor_info import TensorInfo
from returnn_tf.native.portable import portable_ops
from returnn_tf.ops.cells.fused_lstm import CUDNN_LSTM
from returnn_tf.util.lazy_tf import tf

#: Inputs -> outputs, all by their names in the model.
Emit = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def write_network(
    model: InferenceModel,
    path: str,
    *,
    opset: int,
    names: Mapping[str, str],
    batch: Optional[int] = None,
    metadata: Optional[Mapping[str, Any]] = None,
    emit: Optional[Emit] = None,
) -> None:
    """Write the file, checked by onnx.

    :param names: of inputs and outputs of the model in the file
    :param batch: fixed number of sequences
    :param metadata: entries of ``metadata_props``
    :param emit: in place of that of the model
    :raises ConfigError: ONNX can't express a layer
    """
    model.pads_empty = True
    specs = [
        tf.TensorSpec(_shape(info, batch), info.dtype, name=names[name]) for name, info in model.input_infos.items()
    ]

    def emit_named(*inputs: Any) -> dict[str, Any]:
        values = (model.emit if emit is None else emit)(dict(zip(model.input_infos, inputs)))
        return {names[name]: value for name, value in values.items()}

    axes = {names[name]: axes for name, axes in axis_names(model).items()}
    write_function(emit_named, specs, path, plan=model.net.plan, opset=opset, metadata=metadata, axes=axes)


def write_function(
    function: Callable[..., Mapping[str, Any]],
    specs: Sequence[Any],
    path: str,
    *,
    plan: Plan,
    opset: int,
    metadata: Optional[Mapping[str, Any]] = None,
    axes: Optional[Mapping[str, Sequence[str]]] = None,
) -> None:
    """Write a function of tensors as a file, checked by onnx.

    :param function: its results have the names of the outputs
    :param specs: `tf.TensorSpec`s whose names become those of the inputs
    :param plan: of the layers, for messages
    :param metadata: entries of ``metadata_props``
    :param axes: names of axes by input or output
    :raises ConfigError: ONNX can't express a layer
    """

    def emit(*inputs: Any) -> Mapping[str, Any]:
        with portable_ops(lstm=CUDNN_LSTM):
            return function(*inputs)

    proto = convert(tf.function(emit, input_signature=specs, autograph=False), specs, plan, opset)
    name_axes(proto, axes or {})
    for key, value in (metadata or {}).items():
        proto.metadata_props.add(key=str(key), value=str(value))
    check_model(proto, plan)
    write_model(proto, path)


def _shape(info: TensorInfo, batch: Optional[int]) -> list[Optional[int]]:
    return [batch if axis == "B" and size is None else size for axis, size in zip(info.axes, info.shape)]

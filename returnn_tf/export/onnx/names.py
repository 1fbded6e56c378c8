"""Names of the inputs and outputs of an ONNX file."""

from __future__ import annotations

from collections.abc import Mapping

from returnn_tf.compiler.feed import batch_major_order
from returnn_tf.config.errors import ExportError, did_you_mean
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.tensor_info import SCORES, VALUE, TensorInfo, graph_name
from returnn_tf.tensor import Dim

#: What RASR calls the tensors of a model that it runs on features; lengths are called ``<name>-size``.
FEATURES, OUTPUT = "features", "output"


def file_names(model: InferenceModel, names: Mapping[str, str], *, rasr: bool) -> dict[str, str]:
    """Return the name of each input and output in the file.

    :param names: the user's: name in `InferenceModel` -> name in the file
    :param rasr: take RASR's names for the one input and the one output
    :raises ConfigError: an unknown name, or one that is given twice; with ``rasr``, several inputs or outputs
    """
    twice = [name for name in model.outputs if name in model.input_infos]
    if twice:
        raise ExportError(
            "export to onnx: the input %r and an output have the same name. Export a 'copy' of that layer." % twice[0]
        )
    result = {name: name for name in [*model.input_infos, *model.outputs]}
    if rasr:
        result.update(_rasr_names(model.input_infos, FEATURES, "input") if model.input_infos else {})
        result.update(_rasr_names(model.outputs, OUTPUT, "output") if model.outputs else {})
    for name, wanted in names.items():
        if name not in result:
            raise ExportError("export to onnx: names: there is no %r. %s" % (name, did_you_mean(name, result)))
        if not wanted:
            raise ExportError("export to onnx: names: %r needs a name that is not empty." % name)
        result[name] = wanted
    owners: dict[str, str] = {}
    for name, wanted in result.items():
        other = owners.setdefault(wanted, name)
        if other != name:
            raise ExportError("export to onnx: names: %r and %r would both be called %r." % (other, name, wanted))
    return result


def axis_names(model: InferenceModel) -> dict[str, list[str]]:
    """Return a name for each axis of the inputs and outputs, the same for the same size; for those that may differ.

    "B" is the batch, "B*4" with 4 hypotheses per sequence, "T" the first other axis of an input that has no fixed size;
    those of further inputs and outputs are called "T_<name>", with "_<axis>" if there are several.
    """
    tensors = {name: model.net.extern_data[model.feed_keys[name]] for name, info in model.input_infos.items()
               if info.kind == VALUE}  # fmt: skip
    tensors.update((graph_name(node.path), node.output) for node in model.nodes)
    found: dict[str, list[str]] = {}
    names: dict[Dim, str] = {}
    for name, info in {**model.input_infos, **model.outputs}.items():
        batch = "B" if info.beam in (None, 1) or info.kind == SCORES else "B*%d" % info.beam
        found[name] = [batch if kind == "B" else "T_%s_%d" % (name, axis) for axis, kind in enumerate(info.axes)]
        data = tensors.get(name) if info.kind == VALUE else None
        places = [] if data is None else [(i, data.dims[axis]) for i, axis in enumerate(batch_major_order(data))]
        dynamic = [(i, dim) for i, dim in places if dim.is_dynamic()]
        for axis, dim in dynamic:
            own = "T_%s%s" % (name, "_%d" % axis if len(dynamic) > 1 else "")
            found[name][axis] = names.setdefault(dim, own if names or name not in model.input_infos else "T")
    return found


def _rasr_names(infos: Mapping[str, TensorInfo], base: str, what: str) -> dict[str, str]:
    """Return the names that RASR knows for one value and the lengths of its first axis."""
    values = [info for info in infos.values() if info.kind == VALUE]
    if len(values) != 1:
        raise ExportError(
            "export to onnx: rasr needs a single %s, but there are %s. Choose by the option outputs, or name each by "
            "the option names." % (what, ", ".join(repr(info.name) for info in values))
        )
    lengths = list(values[0].lengths.values())
    more = {name: "%s-size%s" % (base, i or "") for i, name in enumerate(lengths)}
    return {values[0].name: base, **more}

"""Names of ops and collections in a meta graph, to which decoders and their configs refer, and ops with exact names.

TensorFlow would change a name that is taken, also by a name in other case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.errors import ExportError
from returnn_tf.graph.layer import Node
from returnn_tf.util.lazy_tf import tf

INPUTS = "extern_data/placeholders"
BATCH_DIM = INPUTS + "/batch_dim"
OUTPUT = "output_batch_major"
LENGTHS = "output_size%d"
EPOCH_STEP = "epoch_step"
SIDE_EFFECTS = "post_control_dependencies"
GLOBAL_STEP = "global_step"
TRAIN_FLAG = "globals/train_flag"
FED_TRAIN_FLAG = "global_tensor_train_flag/train_flag"

#: Collections; those of TensorFlow itself have its names.
STATE_VARS = "_RETURNN_state_vars"
UPDATE_OPS = "update_ops"
#: One JSON text for each layer with an output: path, tensors, axes.
LAYER_OUTPUTS = "returnn_tf_layer_outputs"


def op_name(name: str) -> str:
    """Return a name of a layer, data key or parameter as TensorFlow accepts it for an op."""
    name = re.sub("[^A-Za-z0-9_.\\-/]", "_", name.encode("ascii", "ignore").decode("ascii"))
    name = re.sub("/+", "/", name).strip("/")
    return name if re.match("[A-Za-z0-9.]", name) else ".%s" % name


def input_name(key: str) -> str:
    """Return the name of the placeholder of a data key."""
    return "%s/%s/%s" % (INPUTS, op_name(key), op_name(key))


def input_size_name(key: str, axis: int) -> str:
    """Return the name of the placeholder of lengths.

    :param axis: of the data, not counting the batch axis
    """
    return "%s_dim%d_size" % (input_name(key), axis)


def output_scope(node: Node) -> str:
    """Return the scope of the output of a layer: that of its name or ``name_scope``."""
    inner = node.layer.inner_scope if node.layer.name_scope is None else ""
    return op_name("/".join(part for part in (node.scope, inner) if part))


def input_scope(key: str) -> str:
    """Return the scope of a data key where it is named like the output of a layer."""
    return "data" if key == "data" else "data__" + op_name(key)


def named(tensor: Any, name: str) -> Any:
    """Give a tensor another name, in the current graph.

    :raises ConfigError: an op has this name
    """
    _check_free(name)
    return tf.identity(tensor, name=name + "/")


def placeholder(name: str, dtype: Any, shape: Sequence[Optional[int]], *, default: Any = None) -> Any:
    """Make a placeholder.

    :param default: value where nothing is fed
    :raises ConfigError: an op has this name
    """
    _check_free(name)
    if default is None:
        return tf.compat.v1.placeholder(dtype, shape, name=name + "/")
    return tf.compat.v1.placeholder_with_default(default, shape, name=name + "/")


def _check_free(name: str) -> None:
    try:
        tf.compat.v1.get_default_graph().get_operation_by_name(name)
    except KeyError:
        return
    raise ExportError(
        "Two ops of the graph would be called %r. Rename the layer or data key whose name is the same as that of "
        "another one after characters that TensorFlow does not allow are replaced." % name
    )

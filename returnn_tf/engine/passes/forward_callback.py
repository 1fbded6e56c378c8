"""``forward_callback``: code of the config that receives the outputs of task forward, sequence by sequence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.errors import SettingError
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.engine.passes.forward_pass import Rows
from returnn_tf.tensor import Data, Dim, DimKind

_METHODS = ("init", "process_seq", "finish")


@dataclass(frozen=True)
class SequenceOutput:
    """The output of a layer for one sequence.

    :param raw_tensor: without batch axis, cut to the lengths of the sequence
    :param dims: of its axes
    :param sparse_dim: if the entries are label indices: the dim they index
    """

    name: str
    raw_tensor: NDArray[Any]
    dims: tuple[Dim, ...]
    sparse_dim: Optional[Dim] = None

    @property
    def dtype(self) -> str:
        """Return the type of the entries, e.g. "float32"."""
        return str(self.raw_tensor.dtype)

    @property
    def shape(self) -> tuple[Optional[int], ...]:
        """Return the sizes of the axes, None where sequences differ."""
        return tuple(dim.dimension for dim in self.dims)

    @property
    def feature_dim(self) -> Optional[Dim]:
        """Return the dim of the features, or None."""
        return next((dim for dim in self.dims if dim.kind is DimKind.FEATURE), None)


class SequenceOutputs(dict[str, SequenceOutput]):
    """The outputs of a sequence by name: "output" is that of ``forward_output_layer``."""

    @property
    def data(self) -> SequenceOutputs:
        """Return the outputs by name, as older code asks for them."""
        return self


def callback_of(config: Config) -> Any:
    """Return the object of ``forward_callback``; None without.

    :raises ConfigError: the function does not return an object with the methods `init`, `process_seq`, `finish`
    """
    settings = TaskSettings(config)
    given = settings.forward_callback
    if given is None:
        return None
    if isinstance(given, type) or not hasattr(given, "process_seq"):
        given = given()
    missing = [name for name in _METHODS if not callable(getattr(given, name, None))]
    if missing:
        raise SettingError(
            "%s: the object of class %s lacks the method%s %s. It needs init(*, model), process_seq(*, seq_tag, "
            "outputs) and finish()."
            % (
                settings.describe_source("forward_callback"),
                type(given).__name__,
                "s" * (len(missing) > 1),
                ", ".join(missing),
            )
        )
    return given


def run_callback(callback: Any, net: Network, name: str, output: Data, order: list[int], rows: Iterable[Rows]) -> int:
    """Call the methods of a callback; return the number of sequences.

    :param name: of the layer
    :param output: its template
    :param order: of the axes of the values, the batch first
    :param rows: the values
    """
    dims = tuple(output.dims[axis] for axis in order[1:])
    count = 0
    callback.init(model=net)
    for some in rows:
        for value, lengths, (tag,) in some.each():
            cut = tuple(
                slice(int(lengths[axis][0])) if axis in lengths else slice(None) for axis in range(value.ndim - 1)
            )
            result = SequenceOutput(name, value[0][cut], dims, output.sparse_dim)
            callback.process_seq(seq_tag=tag, outputs=SequenceOutputs({"output": result, name: result}))
            count += 1
    callback.finish()
    return count

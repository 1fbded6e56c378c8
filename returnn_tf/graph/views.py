"""Views of layers and their outputs for user code in a network, under the names that such code uses."""

from __future__ import annotations

from typing import Any, Callable, Optional

from returnn_tf.config.user_code import config_in_use
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.node import Node
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


class DataView:
    """A tensor with its template and lengths.

    :param data: template
    :param tensor: value in this layout
    """

    def __init__(self, ctx: EmitContext, data: Data, tensor: Any) -> None:
        self._ctx = ctx
        self.template = data
        self.placeholder = tensor

    @property
    def raw_tensor(self) -> Any:
        """Return the same as ``placeholder``."""
        return self.placeholder

    @property
    def dtype(self) -> str:
        """Return the numpy name of the dtype."""
        return self.template.dtype

    @property
    def dim(self) -> Optional[int]:
        """Return the number of features, or of labels if sparse."""
        return self.template.dim

    @property
    def sparse(self) -> bool:
        """Return whether the entries are label indices."""
        return self.template.sparse

    @property
    def batch_dim_axis(self) -> Optional[int]:
        """Return the index of the batch axis."""
        return self.template.batch_axis

    @property
    def time_dim_axis(self) -> Optional[int]:
        """Return the index of the time axis."""
        return self.template.time_axis

    @property
    def feature_dim_axis(self) -> Optional[int]:
        """Return the index of the feature axis."""
        return self.template.feature_axis

    @property
    def batch_ndim(self) -> int:
        """Return the number of axes, batch included."""
        return self.template.rank

    @property
    def dim_tags(self) -> Any:
        """Return the dims in order."""
        return self.template.dims

    @property
    def is_batch_major(self) -> bool:
        """Return whether batch is the first axis."""
        return self.template.batch_axis == 0

    @property
    def is_time_major(self) -> bool:
        """Return whether time is the first axis."""
        return self.template.time_axis == 0

    @property
    def size_placeholder(self) -> Any:
        """Return the lengths by axis, not counting batch."""
        batch = self.template.batch_axis
        return {
            a - (1 if batch is not None and batch < a else 0): self.get_dynamic_size(a)
            for a in self.template.dynamic_axes
        }

    def get_dynamic_size(self, axis: int) -> Any:
        """Return the lengths of an axis, int32 [batch]."""
        return self._ctx.lens(self.template.dims[axis])

    def get_sequence_lengths(self) -> Any:
        """Return the lengths of the time axis, int32 [batch]."""
        dim = self.template.time_dim
        if dim is None:
            raise ValueError("%s has no time axis" % self.template)
        lens = self._ctx.lens(dim)
        return lens if lens.shape.rank else tf.fill([self.get_batch_dim()], lens)

    def get_sequence_mask(self) -> Any:
        """Return the bool mask of the valid frames, [batch, time] or [time, batch] in the order of the axes."""
        time, batch = self.template.time_axis, self.template.batch_axis
        assert time is not None and batch is not None, "needs batch and time"
        mask = self._ctx.seq_mask_by_batch(self.template, time)
        return tf.transpose(mask) if time < batch else mask

    def get_sequence_mask_broadcast(self) -> Any:
        """Return `get_sequence_mask` with size 1 on all other axes."""
        assert self.template.time_axis is not None, "needs a time axis"
        return self._ctx.mask(self.template, self.template.time_axis)

    def get_batch_dim(self) -> Any:
        """Return the number of sequences."""
        axis = self.template.batch_axis
        return 1 if axis is None else tf.shape(self.placeholder)[axis]

    def time_dimension(self) -> Any:
        """Return the size of the padded time axis."""
        return tf.shape(self.placeholder)[self.template.time_axis]

    def copy_as_batch_major(self) -> DataView:
        """Return a copy with the batch axis first."""
        return self._moved(self.template.batch_axis, 0)

    def copy_as_time_major(self) -> DataView:
        """Return a copy with the time axis first."""
        return self._moved(self.template.time_axis, 0)

    def copy_as_batch_feature_major(self) -> DataView:
        """Return a copy with batch first and feature second."""
        view = self.copy_as_batch_major()
        return view._moved(view.template.feature_axis, 1)

    def get_placeholder_as_batch_major(self) -> Any:
        """Return the tensor with the batch axis first."""
        return self.copy_as_batch_major().placeholder

    def get_placeholder_as_time_major(self) -> Any:
        """Return the tensor with the time axis first."""
        return self.copy_as_time_major().placeholder

    def get_placeholder_flattened(self, keepdims: bool = False) -> Any:
        """Return the valid frames as a tensor [valid frames, features...]."""
        del keepdims
        view = self.copy_as_batch_major()
        time = view.template.time_axis
        if time is None:
            return view.placeholder
        view = view._moved(time, 1)
        return tf.boolean_mask(view.placeholder, view.get_sequence_mask())

    def _moved(self, source: Optional[int], target: int) -> DataView:
        if source is None or source == target:
            return self
        perm = [i for i in range(self.template.rank) if i != source]
        perm.insert(target, source)
        return DataView(self._ctx, self.template.permuted(perm), transpose(self.placeholder, perm))


class NetworkView:
    """``self.network`` in user code."""

    def __init__(self, ctx: EmitContext) -> None:
        self._ctx = ctx

    @property
    def train_flag(self) -> bool:
        """Return whether this is a training graph."""
        return self._ctx.train

    def cond_on_train(self, fn_train: Callable[[], Any], fn_eval: Callable[[], Any]) -> Any:
        """Return the value of the first function in a training graph, else that of the second."""
        return fn_train() if self._ctx.train else fn_eval()

    def get_config(self) -> Any:
        """Return the `Config`."""
        return config_in_use()

    @property
    def search_flag(self) -> bool:
        """Return whether this is a search graph."""
        return self._ctx.search

    @property
    def global_train_step(self) -> Any:
        """Return the global train step, int64 scalar."""
        return self._ctx.step

    @property
    def layers(self) -> Any:
        """Return views of all layers computed so far, by path."""
        return {node.path: LayerView(self._ctx, node) for node in self._ctx.lowering.values}

    def get_layer(self, name: str) -> LayerView:
        """Return a layer that is already computed; list it in ``from`` to ensure that."""
        for node in self._ctx.lowering.values:
            if node.path == name:
                return LayerView(self._ctx, node)
        raise ValueError("layer %r is not computed yet; add it to 'from' of layer %r" % (name, self._ctx.node.path))


class LayerView:
    """``self`` in user code.

    :param node: the layer
    """

    def __init__(self, ctx: EmitContext, node: Node) -> None:
        self._ctx = ctx
        self._node = node
        self.name = node.path
        self.network = NetworkView(ctx)

    @property
    def output(self) -> DataView:
        """Return the value of the layer; of the layer being computed only the template is known."""
        return DataView(self._ctx, self._node.output, self._ctx.lowering.values.get(self._node))

    @property
    def sources(self) -> list[LayerView]:
        """Return views of the sources."""
        return [LayerView(self._ctx, node) for node in self._node.sources]

    def get_batch_dim(self) -> Any:
        """Return the number of sequences."""
        return self._ctx.lowering.batch_size

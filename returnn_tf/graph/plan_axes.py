"""Axes of templates, as layers ask for them while they are planned."""

from __future__ import annotations

from typing import Any

from returnn_tf.config.errors import ConfigError, DimError, LoopError, SourceError, SparseError
from returnn_tf.graph.layer import Node
from returnn_tf.graph.network_planner import NetworkPlanner
from returnn_tf.tensor import AxisDesc, Data, Dim, DimKind, resolve_axes, resolve_axis
from returnn_tf.tensor.axes import axes_of


class PlannedAxes:
    """The axes of the sources of a layer, and what it needs of them."""

    def __init__(self, node: Node, planner: NetworkPlanner) -> None:
        self.node = node
        self.planner = planner
        self.semantics = planner.semantics
        self.behavior_version = planner.semantics.behavior_version
        self.float_dtype = planner.semantics.float_dtype

    def error(self, message: str) -> ConfigError:
        """Return an error to raise; the compiler prepends layer path, class and sources."""
        return DimError(message)

    def axis(self, data: Data, desc: AxisDesc) -> int:
        """Return the index of the one axis that matches."""
        return resolve_axis(data, desc, behavior_version=self.behavior_version, names=self.planner.dims.names)

    def axes(self, data: Data, desc: Any) -> list[int]:
        """Return the indices of all axes that match; each name must match, except those of groups and "T?"."""
        return resolve_axes(data, desc, behavior_version=self.behavior_version, names=self.planner.dims.names)

    def has_axis(self, data: Data, desc: AxisDesc) -> bool:
        """Return whether a known name or a dim means an axis."""
        if isinstance(desc, Dim):
            return bool(axes_of(data, desc))
        try:
            return bool(self.axes(data, desc))
        except ConfigError:
            return False

    def single_source(self) -> Data:
        """Return the template of the only source."""
        if len(self.node.sources) != 1:
            raise SourceError("needs exactly one source in 'from', got %d." % len(self.node.sources))
        return self.node.sources[0].output

    def need_feature(self, data: Data, what: str = "the source") -> Dim:
        """Return the feature dim; raise an error if there is none or if the data is sparse."""
        if data.sparse_dim is not None:
            raise SparseError(
                "%s is sparse (label indices of %s), but dense features are needed. Embed it by a linear layer first, "
                "or make it one-hot." % (what, data.sparse_dim),
            )
        dim = data.feature_dim
        if data.unknown:
            raise LoopError(
                "the shape of %s follows from itself in a loop. Give that layer n_out or initial_output." % what,
            )
        if dim is None:
            raise self.error(
                "%s %s has no feature axis. Add one by expand_dims, or mark one by reinterpret_data." % (what, data)
            )
        return dim

    def need_static(self, dim: Dim, what: str) -> int:
        """Return the static size of a dim."""
        if dim.size is None:
            merged = " Were frames merged into it, e.g. by merge_dims of T and F?"
            merged = merged if dim.kind is DimKind.FEATURE else ""
            raise self.error("%s must have a static size, but %s is dynamic.%s" % (what, dim, merged))
        return dim.size

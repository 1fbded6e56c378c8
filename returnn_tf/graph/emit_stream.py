"""Recurrences in graphs that compute sequences block by block: they go on with the state after the last block."""

from __future__ import annotations

from typing import Any

from returnn_tf.graph.after_step.kept_state import KeptSpec
from returnn_tf.graph.emit_lengths import Lengths
from returnn_tf.tensor import Data


class Stream(Lengths):
    """What recurrent layers ask the context for; outside of such graphs, they begin anew with each batch."""

    @property
    def continues(self) -> bool:
        """Return whether a recurrence over frames goes on where the last block ended.

        One within a loop or a branch begins anew there.
        """
        return not self.lowering.is_child and getattr(self.lowering.kept, "continues", False)

    def state_before(self, name: str, data: Data, first: Any) -> Any:
        """Return a state before the first frame of this block.

        :param name: of the state, within the layer
        :param data: template, without the axis of the frames
        :param first: the state before the first frame of a sequence, in this layout
        """
        if not self._has_stream(data):
            return first
        return self.lowering.kept.before(self._spec(name, data), first)

    def state_after(self, name: str, data: Data, last: Any) -> None:
        """Pass on the state after the last frame of each sequence in this block, see `state_before`."""
        if self._has_stream(data):
            self.lowering.kept.after(self._spec(name, data), last)

    def _has_stream(self, data: Data) -> bool:
        """Return whether a state belongs to a sequence, not to one of a varying number of frames of it."""
        return self.continues and all(dim.is_batch or not dim.is_dynamic for dim in data.dims)

    def _spec(self, name: str, data: Data) -> KeptSpec:
        path = self.node.path
        return KeptSpec("%s/%s" % (path, name), data, resets=False, is_param=False, layer_path=path)

"""The end of a loop: its layer ``end``, and the limit of its steps."""

from __future__ import annotations

from returnn_tf.compiler.loops.analysis import reachable
from returnn_tf.compiler.loops.crossing import Crossing
from returnn_tf.compiler.loops.max_steps import plan_limit
from returnn_tf.compiler.loops.zone_builder import ZoneBuilder
from returnn_tf.compiler.planning.checks import LayerError
from returnn_tf.graph.node import Node
from returnn_tf.layers.search.choice import ChoiceLayer
from returnn_tf.loops.nodes import (
    LoopLengthLayer,
)
from returnn_tf.loops.plan import Ending


class Endings(Crossing):
    """A step network that knows when its loop ends."""

    def _plan_limit(self) -> None:
        """Plan the options max_seq_len and max_seq_len_via.

        Their layers are part of the network even where they have no effect, as in training.
        """
        limit = plan_limit(self.owner, self.parent)
        if limit is None:
            return
        self._limit = limit.steps
        for node in limit.nodes:
            self._length_deps.append(node)
            self.owner.depend(node)
        if not self.layers.has_end and not self._axis.known:
            # Then it is the number of steps of all sequences.
            length = self.add(self.parent, "length", LoopLengthLayer(self.time_dim, limit.steps), limit.nodes)
            self._length_deps.append(length)
            self.owner.depend(length)

    def _ending(self, builder: ZoneBuilder) -> Ending:
        """Return when the loop ends."""
        include_eos = bool(self.layer.include_eos)
        if not self.layers.has_end:
            return Ending(None, include_eos, None, None)
        end = builder.node("end")
        if end.output.dtype != "bool" or end.output.rank > (0 if end.output.batch_axis is None else 1):
            raise LayerError("Layer %r: 'end' must be a bool per sequence, it is %s." % (end.path, end.output))
        self._check_end(builder, end)
        if self._limit is None and self._axis.source_dim is None:
            raise LayerError(
                "Layer %r: a loop that ends by its layer 'end' needs the option max_seq_len, so that it always "
                "terminates. Give a number or e.g. \"max_len_from('base:encoder')\"." % self.owner.path
            )
        return Ending(end, include_eos, self._limit, self.time_dim)

    def _check_end(self, builder: ZoneBuilder, end: Node) -> None:
        """Check that in search the end distinguishes hypotheses."""
        choices = [n for n in builder.sink if isinstance(n.layer, ChoiceLayer) and n.layer.searches]
        if not choices:
            return
        names = {name for name, spec in self.layers.specs.items() if issubclass(spec.cls, ChoiceLayer)}
        found = reachable(["end"], lambda name: [*self.layers.links[name].now, *self.layers.links[name].prev])
        if not found & names:
            raise LayerError(
                "Layer %r: 'end' does not depend on the choice %r, so it can't tell which hypothesis ends. Make it "
                "depend on the label, e.g. 'end': {'class': 'compare', 'from': %r, 'value': 0}, or, if the number of "
                "steps is known, give the loop a source or the option 'axis' instead of 'end'."
                % (end.path, choices[-1].path, choices[-1].path.rpartition("/")[2])
            )

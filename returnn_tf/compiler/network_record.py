"""A planned network as values for JSON: `returnn-tf check --json`. No TensorFlow.

The keys are a promise to other programs: `docs/check-json.md` explains them, `docs/check.schema.json` declares them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional

from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.graph.layer import Node
from returnn_tf.graph.loss import LossNode
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.layers.nested.cond import CondLayer
from returnn_tf.loops.frame import loop_of
from returnn_tf.loops.nodes import ShiftLayer
from returnn_tf.loops.plan import LoopPlan
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.dim import brief_name

#: A JSON object.
Record = dict[str, Any]

#: The places of layers in a loop, as plans name them, and their short names.
_ZONES = {"before the loop": "before", "in the loop": "step", "after the loop": "after"}


def network_record(plan: Plan) -> Record:
    """Return layers, parameters, losses and loops of a plan."""
    return _Network(plan).record()


@dataclasses.dataclass(frozen=True)
class _Place:
    """The loop and the zone in which a layer is computed.

    :param loop: path of the `rec` layer
    :param zone: "before", "step" or "after" the loop; "all": for all steps at once, as there is none
    """

    loop: str
    zone: str


class _Network:
    """One network, with the numbers of its dims."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._dims: dict[Dim, int] = {}
        self._loops: list[LoopPlan] = []
        #: Node that stands for a value of the previous step -> the layer there.
        self._previous: dict[Node, Node] = {}
        self._in_step: dict[Node, str] = {}
        self._iterating = [node.path for node in plan.visible_nodes() if node.layer.iterates_unit]
        #: Layer of a `cond` -> the branch that it is in; both may have layers of the same path.
        self._branches: dict[Node, str] = {}
        self._params = plan.params
        for node in plan.all_nodes():
            if isinstance(node.layer, CondLayer):
                for name, inner in zip(("true", "false"), node.layer.plan.branches):
                    self._branches.update(dict.fromkeys(inner, name))
            loop = loop_of(node)
            if loop is not None:
                self._loops.append(loop)
                self._previous.update((prev.node, prev.of) for prev in loop.prevs)
                self._in_step.update((inner, loop.path) for inner in node.inner)

    def record(self) -> Record:
        """Return the whole network."""
        plan = self._plan
        layers = [self._layer(node) for node in plan.visible_nodes()]
        params = self._params
        return {
            "train": plan.train,
            "search": plan.search,
            "layers": layers,
            "outputs": [node.path for node in plan.outputs.values()],
            "parameters": [_param(spec) for spec in params.values()],
            "kept_states": [
                {
                    "name": spec.name,
                    "layer": spec.layer_path,
                    "shape": list(spec.shape),
                    "dtype": spec.data.dtype,
                    "resets": spec.resets,
                }
                for spec in plan.kept.values()
            ],
            "losses": [_loss(loss) for loss in plan.losses],
            "loops": [_loop(loop) for loop in self._loops],
            "totals": {
                "layers": sum(layer["data_key"] is None for layer in layers),
                "parameters": len(params),
                "numbers": sum(spec.size for spec in params.values()),
                "trainable_numbers": sum(spec.size for spec in params.values() if spec.trainable),
            },
        }

    def _layer(self, node: Node) -> Record:
        place = self._place(node)
        return {
            "path": node.path,
            "class": "data" if node.extern_key is not None else node.layer.class_name,
            "data_key": node.extern_key,
            "sources": [self._source(source) for source in node.sources],
            "output": self._tensor(node.output),
            "further_outputs": {name: self._tensor(data) for name, data in node.sub_outputs.items()},
            "parameters": {
                # what a function of the config makes of a parameter has no name
                name: spec.name if getattr(spec, "name", None) in self._params else None
                for name, spec in node.params.items()
            },
            "loop": None if place is None else place.loop,
            "zone": None if place is None else place.zone,
            "branch": self._branches.get(node),
        }

    def _place(self, node: Node) -> Optional[_Place]:
        """Return the loop and the zone of a layer; None outside of all loops."""
        if node in self._in_step:
            return _Place(self._in_step[node], "step")
        around = [path for path in self._iterating if node.path.startswith(path + "/")]
        if not around:
            return None
        path = max(around, key=len)
        name = node.path[len(path) + 1 :].split("/")[0]
        for loop in self._loops:
            if loop.path == path and name in loop.zones:
                return _Place(path, _ZONES[loop.zones[name][0]])
        return _Place(path, "all")  # nothing runs step by step, so that there is no loop

    def _source(self, node: Node) -> Record:
        """Return the layer behind what connects a loop with the outside, and whether it is that of the step before."""
        previous = False
        while node.layer.is_connector:
            before = self._previous.get(node)
            previous = previous or before is not None or isinstance(node.layer, ShiftLayer)
            if before is not None:
                node = before
            elif isinstance(node.layer.of, Node):
                node = node.layer.of
            elif node.sources:
                node = node.sources[0]
            else:
                break  # the index of the step
        return {"layer": node.path, "previous_step": previous}

    def _tensor(self, data: Data) -> Record:
        axes = []
        for axis, dim in enumerate(data.dims):
            marks = {"is_time": axis == data.time_axis, "is_feature": axis == data.feature_axis}
            axes.append({**self._dim(dim), **marks, "is_loop_steps": dim.is_loop})
        return {
            "dtype": data.dtype,
            "axes": axes,
            "sparse_dim": None if data.sparse_dim is None else self._dim(data.sparse_dim),
            "beam": None if data.beam is None else {"size": data.beam.size, "loop": data.beam.of},
        }

    def _dim(self, dim: Dim) -> Record:
        return {
            "dim": self._dims.setdefault(dim, len(self._dims)),
            "name": brief_name(dim) or ("batch" if dim.is_batch else ""),
            "kind": "spatial" if dim.is_loop else dim.kind.value,
            "size": dim.size,
            "dynamic": dim.is_dynamic(),
        }


def _param(spec: ParamSpec) -> Record:
    return {
        "name": spec.name,
        "layer": spec.layer_path,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "trainable": spec.trainable,
    }


def _loss(loss: LossNode) -> Record:
    by = loss.loss.custom_norm_factor
    inverse = loss.loss.custom_inv_norm_factor
    return {
        "name": loss.name,
        "layer": loss.owner.path,
        "class": loss.loss.class_name,
        "scale": number(loss.scale),
        "target": None if loss.target is None else loss.target.path,
        "normalized_objective": bool(loss.loss.use_normalized_loss),
        "report_factor": by.path if isinstance(by, Node) else number(by),
        "report_divisor": inverse.path if isinstance(inverse, Node) else None,
    }


def _loop(loop: LoopPlan) -> Record:
    search = loop.search
    return {
        "path": loop.path,
        "ends_by": None if loop.ending.end is None else loop.ending.end.path,
        "beam_size": None if search is None else search.beam_size,
        "layers": [
            {"layer": "%s/%s" % (loop.path, name), "zone": _ZONES[zone], "because": why or None}
            for name, (zone, why) in loop.zones.items()
        ],
    }


def number(value: Any) -> Any:
    """Return a number, or None for one that JSON does not have; other values unchanged."""
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Lower: emits the ops of a plan while a `tf.function` is traced."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Callable, Optional

from returnn_tf.compiler.packed_layers import packed_layers
from returnn_tf.compiler.planning.plan import Plan, loss_deps
from returnn_tf.config import Config
from returnn_tf.config.errors import DimError
from returnn_tf.config.settings.training import DEFAULT_SEED
from returnn_tf.config.settings.update import UpdateSettings
from returnn_tf.graph.carried_state import CarriedState
from returnn_tf.graph.check_numerics import checked_finite
from returnn_tf.graph.constraints import output_constraint, param_constraint
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.emit_node import emit_node, op_scope
from returnn_tf.graph.layer import Node
from returnn_tf.graph.loss import LossContext, LossNode
from returnn_tf.graph.lowering import FramePackings, Lowering, LoweringOptions, ParamValues
from returnn_tf.loops.frame import LoopRunLayer
from returnn_tf.native.portable import twice_differentiable_ops
from returnn_tf.ops.frames.shape import size_of, transpose
from returnn_tf.ops.frames.skipped_padding import LEAST_SHARE
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass
class Lowered:
    """All results of one emitted graph.

    :param values: tensor by layer path, in the layout of its template
    :param losses: reduced loss by layer path, unscaled; divided by the number of frames if it is normalised
    :param errors: error by layer path
    :param counts: float scalar by layer path: the number of frames or sequences that reports divide loss and error by
    :param objective: scaled losses without constraints; None if there is no loss
    :param constraints: scalar; 0 without constraints
    :param output_constraints: those on outputs, which are sums over the batch; None: there are none
    :param updates: functions to call once after the outputs, e.g. running means
    """

    values: dict[str, Any]
    losses: dict[str, Any]
    errors: dict[str, Any]
    counts: dict[str, Any]
    objective: Optional[Any]
    constraints: Any
    updates: list[Callable[[], Any]]
    lowering: Lowering
    #: Whether any layer has a constraint.
    has_constraints: bool = False
    output_constraints: Optional[Any] = None

    def run_updates(self) -> None:
        """Emit the updates outside of training: running statistics that every run changes, as in old configs."""
        for update in self.updates:
            update()

    @property
    def sinks(self) -> dict[str, dict[str, Any]]:
        """Return the values that layers with a sink pass on after the step, by path."""
        return self.lowering.after_step.sink_values

    @property
    def total_loss(self) -> Any:
        """Return the objective with constraints."""
        return self.constraints if self.objective is None else self.objective + self.constraints

    def lens_by_axis(self, data: Data) -> dict[int, Any]:
        """Return the lengths of all dynamic axes of a template: [batch], or a scalar where all sequences are equal.

        Lengths that vary with the frames of other axes are [batch, those axes].
        """
        beam = 1 if data.beam is None else data.beam.size
        return {axis: self._lens_of(data, data.dims[axis], beam) for axis in data.dynamic_axes}

    def _lens_of(self, data: Data, dim: Dim, beam: int) -> Any:
        if not self.lowering.dims.is_by_frame(dim):
            return self.lowering.dims.lens_in_beam(dim, beam)
        over, lens = self.lowering.dims.lens_by_frame(dim)
        axes = [data.axis_of_steps(frames) for frames in over]
        order = sorted(
            range(len(over)), key=lambda i: (not over[i].is_batch, data.rank if axes[i] is None else axes[i])
        )
        return transpose(lens, order)


def needs_second_derivatives(config: Config) -> bool:
    """Return whether a training by these settings computes gradients of the norm of the gradient."""
    return bool(UpdateSettings(config).maximize_grad_norm)


def lower(
    plan: Plan,
    variables: Mapping[str, Any],
    feed: Mapping[str, Any],
    *,
    train: bool,
    outputs: Sequence[Node],
    with_losses: bool = True,
    step: Any = None,
    seed: int = DEFAULT_SEED,
    process_offset: int = 0,
    check_numerics: str = "",
    print_outputs: bool = False,
    carried: CarriedState,
    second_derivatives: bool = False,
    skip_padding: Optional[bool] = None,
    scales: Mapping[tuple[str, str], Any] = MappingProxyType({}),
) -> Lowered:
    """Emit the ops of some layers and of the losses.

    :param variables: parameter name -> variable
    :param feed: "<key>" -> batch-major tensor, "<key>/size<i>" -> int32 [batch]
    :param outputs: the requested layers
    :param process_offset: see `LoweringOptions`
    :param check_numerics: which outputs are checked for NaN, see `returnn_tf.graph.check_numerics.option`
    :param print_outputs: whether every output is printed when it is computed
    :param carried: holds the states that layers carry from run to run
    :param second_derivatives: whether gradients of the gradient will be computed, see `needs_second_derivatives`
    :param skip_padding: whether layers skip padding in training; None: where it pays
    :param scales: see `LoweringOptions`
    :raises ConfigError: they are to, but none can
    """
    owners = plan.loss_owners() if with_losses else {}
    needed = plan.needed([*outputs, *owners.values()], owners)
    readers = _readers(needed)
    readers.update(dep for loss in owners for dep in loss_deps(loss))
    differentiated = frozenset(x for node in plan.all_nodes() for x in node.layer.differentiates_by())
    packed_nodes, pack_ops = frozenset[Node](), None
    all_frames = check_numerics or print_outputs or second_derivatives
    if train and skip_padding is not False and not all_frames:
        packed_nodes, pack_ops = packed_layers(needed, owners, differentiated, always=bool(skip_padding))
    if train and skip_padding and not packed_nodes:
        raise _no_packed_layers(bool(all_frames))
    lowering = Lowering(
        LoweringOptions(
            train,
            plan.search,
            plan.semantics,
            seed=seed,
            process_offset=process_offset,
            check_numerics=check_numerics,
            print_outputs=print_outputs,
            with_losses=with_losses,
            second_derivatives=second_derivatives,
            readers=readers,
            differentiated=differentiated,
            scales=scales,
        ),
        ParamValues(dict(variables)),
        step=step,
        carried=carried,
        packing=FramePackings(packed_nodes, pack_ops, 0.0 if skip_padding else LEAST_SHARE),
    )
    with twice_differentiable_ops(second_derivatives or _differentiates_gradients(needed, train, with_losses)):
        return _emitted(plan, lowering, feed, needed, outputs, owners)


def _emitted(
    plan: Plan,
    lowering: Lowering,
    feed: Mapping[str, Any],
    needed: set[Node],
    outputs: Sequence[Node],
    owners: Mapping[LossNode, Node],
) -> Lowered:
    for key, node in plan.extern.items():
        if node in needed:
            _feed_key(lowering, key, node, feed)
    for node in plan.nodes:
        if node in needed and node.extern_key is None:
            emit_node(lowering, node)
    result = Lowered(
        {}, {}, {}, {}, None, tf.zeros([], plan.semantics.float_dtype), lowering.after_step.updates, lowering
    )
    result.values = {node.path: lowering.values.outputs[node] for node in outputs}
    for loss, owner in owners.items():
        _emit_loss(result, loss, owner)
    if lowering.options.with_losses:
        everything = list(plan.all_nodes())
        for node in plan.nodes:
            if node in needed and node.extern_key is None:
                for constraint, on_output in _constraints(lowering, node, everything):
                    result.constraints += constraint
                    result.has_constraints = True
                    if on_output:
                        before = result.output_constraints
                        result.output_constraints = constraint if before is None else before + constraint
    return result


def _differentiates_gradients(needed: Iterable[Node], train: bool, with_losses: bool) -> bool:
    """Return whether layers, those in loops included, make gradients that a loss or another gradient may be on."""
    nodes = list(_with_inner(needed))
    if train and with_losses and any(node.layer.has_meta_loss for node in nodes):
        return True
    return sum(node.layer.is_derivative for node in nodes) > (0 if with_losses else 1)


def _with_inner(nodes: Iterable[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from _with_inner(node.inner)


def _readers(nodes: Iterable[Node]) -> Counter[Node]:
    """Count the layers that read each node, those in loops included, with a loop that reads it after a step."""
    readers: Counter[Node] = Counter()
    for node in _with_inner(nodes):
        readers.update({*node.deps, *node.param_deps})
        if isinstance(node.layer, LoopRunLayer):
            readers.update(node.layer.read_after_step())
    return readers


def _no_packed_layers(all_frames: bool) -> DimError:
    if all_frames:
        why = "with checks or prints of all outputs, or maximize_grad_norm, layers compute all frames"
    else:
        why = (
            "none works frame by frame on float32 [batch, time, features] without others after it that see padding, "
            "or this needs a native op that can't be used here (returnn-tf doctor)"
        )
    return DimError("skip_padding = True, but no layer can skip padding: %s. Set it to None." % why)


def _constraints(
    lowering: Lowering, node: Node, everything: Sequence[Node], run: Optional[Node] = None
) -> Iterator[tuple[Any, bool]]:
    """Yield the constraints of a layer and of the layers inside it, and whether they are on the output.

    :param everything: all layers of the network
    :param run: for a layer of a loop: the node that runs the loop
    """
    for inner in node.inner:
        yield from _constraints(lowering, inner, everything, node)
    ctx = EmitContext(node, lowering)
    for constraint, on_output in ((param_constraint(ctx, everything), False), (output_constraint(ctx, run), True)):
        if constraint is not None:
            yield constraint, on_output


def _feed_key(lowering: Lowering, key: str, node: Node, feed: Mapping[str, Any]) -> None:
    """Set the input tensor in the layout of its template, and the lengths of its dims."""
    data = node.output
    x = feed[key]
    batch = data.batch_axis
    order = list(range(data.rank))
    if batch is not None:
        order.insert(0, order.pop(batch))
        lowering.dims.batch_size = size_of(x, 0) if lowering.dims.batch_size is None else lowering.dims.batch_size
    for i, axis in enumerate(order):
        dim = data.dims[axis]
        if not dim.is_dynamic():
            continue
        lowering.dims.sizes.setdefault(dim, size_of(x, i))
        name = "%s/size%d" % (key, i - 1 if batch is not None else i)
        if name in feed:
            lowering.dims.lens.setdefault(dim, tf.cast(feed[name], tf.int32))
    back = [order.index(axis) for axis in range(data.rank)]
    lowering.values.outputs[node] = transpose(x, back)


def _emit_loss(result: Lowered, loss_node: LossNode, node: Node) -> None:
    lowering = result.lowering
    loss = loss_node.loss
    ctx = LossContext(loss_node, EmitContext(node, lowering))
    with tf.name_scope(op_scope(loss_node.name) + "_loss"):
        count = loss.count(ctx)
        value = loss.value(ctx)
        error = loss.error(ctx)
    result.counts[loss_node.name] = count
    if error is not None:
        result.errors[loss_node.name] = tf.cast(error, ctx.float_dtype)
    if value is None:
        return
    if loss.use_normalized_loss:
        value = tf.math.divide_no_nan(value, tf.cast(count, value.dtype))  # a branch that has no such loss
    if lowering.options.check_numerics:
        value = checked_finite(value, "the loss %r of layer %r" % (loss_node.name, node.path))
    result.losses[loss_node.name] = value
    if loss_node.scale:
        scaled = value * loss_node.scale
        result.objective = scaled if result.objective is None else result.objective + scaled


def needed_extern_keys(plan: Plan, outputs: Sequence[Node], with_losses: bool) -> list[str]:
    """Return the data keys that must be fed."""
    owners = plan.loss_owners() if with_losses else {}
    needed = plan.needed([*outputs, *owners.values()], owners)
    return [key for key, node in plan.extern.items() if node in needed]

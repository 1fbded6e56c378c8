"""A step whose batch does not fit into memory, in two halves one after the other: what they add up to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable

from returnn_tf.compiler.lower import Lowered
from returnn_tf.compiler.network import Network
from returnn_tf.compiler.split_batch import num_sequences, obstacle, part_of_feed
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.engine.update import gradients
from returnn_tf.engine.update.gradients import Gradients
from returnn_tf.logging.log import log
from returnn_tf.util.lazy_tf import tf

_NOISE = 7919  # prime: random numbers of the second half differ from those of the first, as between ranks


def why_whole(net: Network, feed: Mapping[str, Any], *reasons: str) -> str:
    """Return why a batch can't be computed in two halves, the first of some reasons; "": it can.

    :param reasons: further ones, "" for each that does not apply
    """
    found = [*reasons, "" if num_sequences(net.extern_data, feed) > 1 else "it has one sequence"]
    if net.jit_compile:
        found.append("with jit_compile, each size of a batch is compiled")
    return next((reason for reason in found if reason), "") or obstacle(net.plan, search=net.search)


def announce(what: str, net: Network, feed: Mapping[str, Any], why: str) -> None:
    """Log that a step ran out of memory, and what follows.

    :param what: the step, as a line begins
    :param why: see `why_whole`
    """
    key = max((name for name in feed if "/size" not in name), key=lambda name: _numbers(feed[name]))
    count = num_sequences(net.extern_data, feed)
    text = "%s: out of memory with %d sequences, %r %s" % (what, count, key, list(feed[key].shape))
    if why:
        log.warn("%s. The batch is not computed in two halves: %s." % (text, why))
    else:
        log.write(2, "%s; computed in two halves. If this happens often, lower batch_size." % text)


def normalized_losses(net: Network) -> list[str]:
    """Return the losses of a network whose value is a mean over the batch (``use_normalized_loss``)."""
    return [node.name for node in net.plan.losses if node.loss.use_normalized_loss]


def halves(net: Network, feed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the feeds of both halves of a batch."""
    middle = num_sequences(net.extern_data, feed) // 2
    return [part_of_feed(net.extern_data, feed, begin, end) for begin, end in ((None, middle), (middle, None))]


def _numbers(tensor: Any) -> int:
    return int(tensor.shape.num_elements() or 0)


def emit_halves(
    net: Network,
    feed: Mapping[str, Any],
    totals: Mapping[str, Any],
    step: Any,
    compute: Callable[[Lowered], tuple[Lowered, Gradients]],
) -> tuple[Lowered, Gradients]:
    """Emit both halves of a batch, the second after the gradients of the first; return the sums.

    The updates by layers are not in the result: there are none in networks that can be split.

    :param totals: for each loss that is a mean over the batch: its count in the whole batch
    :param compute: training graph -> the graph with the share of this process in the objective, and the gradients
    """
    middle = num_sequences_in_graph(net, feed) // 2
    first = _half(net, part_of_feed(net.extern_data, feed, None, middle), totals, step)
    graph, grads = compute(first)
    with tf.control_dependencies(list(grads.raw.values())):
        rest = {name: tf.identity(x) for name, x in part_of_feed(net.extern_data, feed, middle, None).items()}
    other, other_grads = compute(_half(net, rest, totals, step, noise_offset=_NOISE))
    return _added(graph, other), _added_gradients(grads, other_grads)


def num_sequences_in_graph(net: Network, feed: Mapping[str, Any]) -> Any:
    """Return the number of sequences of a feed while a step is traced, int32 scalar."""
    key = next(key for key in feed if key in net.extern_data and net.extern_data[key].batch_axis is not None)
    return tf.shape(feed[key])[0]


def _half(
    net: Network, feed: Mapping[str, Any], totals: Mapping[str, Any], step: Any, noise_offset: int = 0
) -> Lowered:
    """Lower half of a batch, with its share in the objective: of means over the batch, that of its frames."""
    graph = net.lower(feed, train=True, step=step, noise_offset=noise_offset)
    graph = dataclasses.replace(graph, constraints=tf.convert_to_tensor(graph.constraints) / 2)
    if not totals:
        return graph
    losses = dict(graph.losses)
    for name, total in totals.items():
        if name not in losses:
            continue
        share = tf.math.divide_no_nan(tf.cast(tf.stop_gradient(graph.counts[name]), "float64"), total)
        losses[name] *= tf.cast(share, losses[name].dtype)
    terms = [losses[node.name] * node.scale for node in net.plan.losses if node.scale and node.name in losses]
    return dataclasses.replace(graph, losses=losses, objective=tf.add_n(terms) if terms else graph.objective)


def _added(one: Lowered, other: Lowered) -> Lowered:
    sums: dict[str, Any] = {}
    for kind in ("losses", "errors", "counts"):
        values, others = getattr(one, kind), getattr(other, kind)
        sums[kind] = {name: value + tf.cast(others[name], value.dtype) for name, value in values.items()}
    assert one.objective is not None and other.objective is not None
    objective, constraints = one.objective + other.objective, one.constraints + other.constraints
    return dataclasses.replace(one, **sums, objective=objective, constraints=constraints, updates=[])


def _added_gradients(one: Gradients, other: Gradients) -> Gradients:
    raw = {name: grad + other.raw[name] for name, grad in one.raw.items()}
    constraints = {
        name: gradients.dense(grad) + gradients.dense(other.constraints[name]) for name, grad in one.constraints.items()
    }
    return Gradients(raw, gradients.fused_global_norm([grad for _, grad in sorted(raw.items())]), constraints)


def added_results(net: Network, one: StepResult, other: StepResult) -> StepResult:
    """Return the result of a batch without training, of those of its halves."""
    counts = {name: count + other.counts[name] for name, count in one.counts.items()}
    losses = {name: value + other.losses[name] for name, value in one.losses.items()}
    for name in normalized_losses(net):
        weighted = [half.losses[name] * half.counts[name] for half in (one, other) if half.counts[name]]
        losses[name] = sum(weighted) / counts[name] if counts[name] else 0.0
    errors = {name: value + other.errors[name] for name, value in one.errors.items()}
    scales = {node.name: node.scale for node in net.plan.losses}
    change = sum(scales[name] * (value - one.losses[name]) for name, value in losses.items())
    return StepResult(one.total_loss + change, losses, errors, counts)

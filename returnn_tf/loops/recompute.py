"""Gradient checkpointing of the step of a loop: the backward pass recomputes each step."""

from __future__ import annotations

from typing import Any, Callable

from returnn_tf.util.lazy_tf import tf


def recomputed(func: Callable[..., list[Any]], inputs: list[Any], again: Callable[[], list[Any]]) -> list[Any]:
    """Compute ``func(*inputs)``, keeping only the inputs for the gradient.

    For use in the body of a `tf.while_loop`. The gradient goes to the inputs and to all outer tensors that the
    function uses (Chen et al. 2016, arXiv 1604.06174).

    :param func: function of tensors returning a list of tensors; called once
    :param again: returns the inputs once more, called in the backward pass; only those tensors of the loop that it does
        not recompute are kept
    """
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in inputs]
    step = tf.function(func, autograph=False).get_concrete_function(*specs)
    outside = list(step.captured_inputs)
    if any(x.dtype in (tf.resource, tf.variant) for x in outside):
        raise ValueError("checkpoint_steps is not possible: a layer of the loop reads a variable or array in each step")
    run = _runner(step)

    def call(*values: Any) -> Any:
        def backward(*upstream: Any) -> list[Any]:
            # The outer tensors themselves: an identity of them in the loop would be kept once per step.
            second = [tf.identity(x) for x in [*again(), *outside]]
            # A call, not copies of the ops: the gradients of some (`tf.custom_gradient`) use tensors of their graph.
            step.set_external_captures(second[len(inputs) :])
            results = step(*second[: len(inputs)])
            return _gradients(results, second, upstream)

        return run([tf.identity(x) for x in values]), backward

    results: list[Any] = list(tf.custom_gradient(call)(*inputs, *outside))
    for result, output in zip(results, step.outputs):
        result.set_shape(output.shape)
    return results


def _runner(step: Any) -> Callable[[list[Any]], list[Any]]:
    """Return a function that copies the ops of a concrete function into the current graph.

    A call of it would do that too, but with its captured tensors instead of the given ones.
    """
    definition = step.graph.as_graph_def()
    names = [x.name for x in step.inputs]
    outputs = [x.name for x in step.outputs]
    given = {name.split(":")[0] for name in names}
    kept = [node for node in definition.node if node.name not in given]
    used = {name.split(":")[0] for node in kept for name in node.input}
    del definition.node[:]
    definition.node.extend(kept)

    def run(values: list[Any]) -> list[Any]:
        passed = {name: value for name, value in zip(names, values) if name.split(":")[0] in used}
        inner = [name for name in outputs if name not in names]
        results = iter(tf.graph_util.import_graph_def(definition, passed, inner, name="step"))
        by_name = dict(zip(names, values))
        return [by_name[name] if name in by_name else next(results) for name in outputs]

    return run


def _gradients(results: list[Any], inputs: list[Any], upstream: Any) -> list[Any]:
    pairs = [(y, dy) for y, dy in zip(results, upstream) if y.dtype.is_floating and dy is not None]
    floats = [x for x in inputs if x.dtype.is_floating]
    grads = iter(tf.gradients([y for y, _ in pairs], floats, [dy for _, dy in pairs]))
    return [next(grads) if x.dtype.is_floating else None for x in inputs]

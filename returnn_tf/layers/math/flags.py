"""`train_flag`, `global_train_step`: the mode and the step as tensors; `print`: values for debugging."""

from __future__ import annotations

from typing import Any, Union

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


@register_layer("train_flag")
class TrainFlagLayer(Layer):
    """Whether this is a training step: a bool scalar.

    Lengths: none.

    Example::

        network = {
            "train": {"class": "train_flag"},
            "output": {"class": "switch", "condition": "train", "true_from": "data", "false_from": 0.0}}
    """

    needs_sources = False

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: a scalar."""
        return Data((), "bool")

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a constant of the graph."""
        return tf.constant(bool(ctx.train))


@register_layer("global_train_step")
class GlobalTrainStepLayer(Layer):
    """The number of training steps done so far: an int64 scalar.

    Lengths: none.

    Example::

        network = {"output": {"class": "global_train_step"}}
    """

    needs_sources = False

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: a scalar."""
        return Data((), "int64")

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the counter before the step is counted."""
        return tf.constant(0, tf.int64) if ctx.step is None else tf.cast(tf.identity(ctx.step), tf.int64)


@register_layer("print")
class PrintLayer(Layer):
    """``y = x``; every time it is computed, the values go to stderr.

    Lengths: unchanged.

    Example::

        network = {"output": {"class": "print", "summarize": 3, "from": "data"}}
    """

    summarize: int = option(99, help="number of entries to print at both ends of every axis; -1: all")
    extra_print_args: Union[str, float, list[Any]] = option((), help="additional values to print")

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the source."""
        return ctx.single_source()

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the identity, after the print op."""
        ctx.forward_aux()
        x = ctx.source()
        extra = self.extra_print_args
        extra = list(extra) if isinstance(extra, (list, tuple)) else [extra]
        what = "%s:" % self.node.path
        printed = tf.print(what, *extra, "shape", tf.shape(x), x, summarize=self.summarize)
        with tf.control_dependencies([printed]):
            return tf.identity(x)

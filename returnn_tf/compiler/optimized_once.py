"""Functions whose graph TensorFlow's optimizer passes over once, which takes half of the time before the first step."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from returnn_tf.util.lazy_tf import tf


class OptimizedOnce:
    """A concrete function whose graph is optimized in one pass when it is called first.

    TensorFlow makes a second pass, which finds next to nothing in graphs of layers: of 6536 ops of a training step, it
    removed 5. It also estimates when each tensor exists, to move some from a GPU to its host. Both take a time in
    proportion to the number of ops. Where the second pass does find something, as in a loop with attention, results
    differ in their last digits.

    :param function: traced; its graph runs on CPUs
    """

    def __init__(self, function: Any) -> None:
        self._function = function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __call__(self, *args: Any) -> Any:
        """Run it."""
        context = importlib.import_module("tensorflow.python.eager.context").context()
        usual = context.function_call_options  # of this thread
        context.function_call_options = _in_one_pass(usual.config_proto_serialized, usual.executor_type)
        try:
            return self._function(*args)
        finally:
            context.function_call_options = usual


@functools.cache
def _in_one_pass(config: bytes, executor: Any) -> Any:
    """Return the options of a call with fewer passes of the optimizer; the same in TensorFlow 2.16 - 2.21.

    :param config: the serialized ``ConfigProto`` of other calls
    """
    options_of_calls = importlib.import_module("tensorflow.python.eager.context").FunctionCallOptions
    changed = tf.compat.v1.ConfigProto.FromString(config)
    rewrites = changed.graph_options.rewrite_options
    rewrites.meta_optimizer_iterations = rewrites.ONE
    rewrites.memory_optimization = rewrites.NO_MEM_OPT
    return options_of_calls(executor_type=executor, config_proto=changed)

"""One training step: a single traced function from a batch to updated parameters."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Union

from returnn_tf.engine.feeding import to_tensors
from returnn_tf.engine.nonfinite import NonFiniteError
from returnn_tf.engine.step_result import Packer, StepResult
from returnn_tf.engine.updater import Updater
from returnn_tf.util.lazy_tf import tf


class Trainer:
    """A network together with updater, optimizer state and step counter.

    The step function is traced at the first call, once for all batch sizes and lengths. If loss or gradient are NaN or
    Inf, no variable changes in that step, unless ``gradient_nan_inf_filter`` or ``grad_norm_to_clip_to_zero`` is set.
    """

    def __init__(self, net: Any, config: Any) -> None:
        """
        :param net: Network, made for training
        :param config: Config: options of the update, ``learning_rate``, ``stop_on_nonfinite_train_score``
        :raises ConfigError: wrong options of the update
        """
        self.net = net
        self.updater = Updater(net, config)
        self.global_step = tf.Variable(0, dtype="int64", trainable=False, name="global_step")
        self._default_rate = config.float("learning_rate", 1.0)
        self._stop = config.bool("stop_on_nonfinite_train_score", True)
        self._packer = Packer()
        self._signature: Dict[str, Any] = dict(net.input_signature())
        self._function = tf.function(
            self._emit,
            input_signature=[self._signature, tf.TensorSpec([], "float32", name="learning_rate")],
            autograph=False,
        )

    @property
    def step_count(self) -> int:
        """How many steps were done, over all epochs."""
        return int(self.global_step.numpy())

    def state(self) -> Dict[str, Any]:
        """Variables beside the parameters which an exact resume needs, by name, without the step counter."""
        return self.updater.state()

    def tensors(self, feed: Mapping[str, Any]) -> Dict[str, Any]:
        """The batch as tensors for :meth:`step`; may run in another thread.

        :raises DataError: missing entry, wrong shape or dtype
        """
        return to_tensors(feed, self._signature)

    def step(self, feed: Mapping[str, Any], learning_rate: Optional[Union[float, Any]] = None) -> StepResult:
        """One update.

        :param feed: feed key (``data``, ``data/size0``, ...) -> array or tensor, batch axis first
        :param learning_rate: default: option ``learning_rate``
        :return: the objective before the update, losses, errors and the norm of the gradient
        :raises NonFiniteError: loss or gradient is NaN or Inf; not with ``stop_on_nonfinite_train_score = False``,
            then the result says so by ``finite`` and the parameters stay as they were
        :raises DataError: the feed does not fit
        """
        rate = tf.constant(self._default_rate if learning_rate is None else learning_rate, "float32")
        result = self._packer.unpack(self._function(self.tensors(feed), rate).numpy())
        if not result.finite and self._stop:
            assert result.step is not None
            raise NonFiniteError(result.step, result.total_loss, result.grad_norm, result.losses)
        return result

    def trace(self) -> Any:
        """Traces the step function now (else the first step does); returns the concrete function."""
        return self._function.get_concrete_function()

    def _emit(self, feed: Dict[str, Any], rate: Any) -> Any:
        step = self.global_step.read_value()
        graph = self.net.lower(feed, train=True, step=step)
        grads = self.updater.gradients(graph)
        rate = self.updater.learning_rate(rate, step)
        total_loss = self.updater.total_loss(graph)
        if self.updater.tolerates_nonfinite:
            good = tf.constant(True)
        else:
            good = tf.logical_and(tf.math.is_finite(grads.norm), tf.math.is_finite(total_loss))

        def update() -> Any:
            self.updater.apply(grads, rate, step)
            for extra in graph.updates:
                if callable(extra):
                    extra()
            return tf.constant(True)

        done = tf.cond(good, update, lambda: tf.constant(False))
        # A step that is left out counts too if training goes on: noise and schedules must not stand still.
        self.global_step.assign_add(tf.cast(tf.logical_or(done, not self._stop), "int64"))
        return self._packer.pack(
            graph,
            {"total_loss": total_loss, "grad_norm": grads.norm, "learning_rate": rate, "step": step, "finite": done},
        )

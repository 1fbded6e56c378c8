"""The base of loss classes in configs: ``from TFNetworkLayer import Loss``."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.compat.views.layer_view import OutputWithActivation
from returnn_tf.config.errors import CodeError
from returnn_tf.util.lazy_tf import tf


class Loss:
    """A loss: a class derives from it, implements `get_value`, and is made known by `register_layer_class`.

    :param base_network: the network of the layer
    :param options: only those of every loss
    """

    class_name: Optional[str] = None
    recurrent = False
    need_target = True

    def __init__(self, base_network: Any = None, **options: Any) -> None:
        if options:
            raise CodeError("unknown loss_opts: %s" % ", ".join(map(repr, sorted(options))))
        self.base_network = base_network
        self.output: Any = None
        self.target: Any = None
        self.layer: Any = None
        self.output_with_activation: Optional[OutputWithActivation] = None
        self.output_flat: Any = None
        self.output_before_softmax_flat: Any = None
        self.target_flat: Any = None
        self.output_seq_lens: Any = None
        self.target_seq_lens: Any = None
        self.loss_norm_factor: Any = None

    def init(
        self, output: Any, output_with_activation: Any = None, target: Any = None, layer: Any = None, **others: Any
    ) -> None:
        """Set the attributes that `get_value` and `get_error` use.

        :param output: view of the output of the layer
        :param output_with_activation: its values before and after the activation, or None
        :param target: view of the target, or None
        """
        self.output, self.target, self.layer = output, target, layer
        self.output_with_activation = output_with_activation
        if output.have_time_axis():
            self.output_seq_lens = output.get_sequence_lengths()
        self.output_flat = output.get_placeholder_flattened()
        if output_with_activation is not None and output_with_activation.is_softmax_act_func():
            before = output.copy()
            before.placeholder = output_with_activation.x
            self.output_before_softmax_flat = before.get_placeholder_flattened()
        if target is not None:
            if target.have_time_axis():
                self.target_seq_lens = target.get_sequence_lengths()
            self.target_flat = target.get_placeholder_flattened()

    def _check_init(self) -> None:
        """Check that `init` was called."""
        assert self.output is not None, "%s.init has to call that of Loss" % type(self).__name__

    def reduce_func(self, loss: Any) -> Any:
        """Return the sum over all frames."""
        return tf.reduce_sum(loss)

    reduce_to_batch = reduce_func

    def get_normalization_factor(self) -> Any:
        """Return the inverse of the number of frames, or of sequences without a time axis."""
        return 1.0 / tf.cast(tf.shape(self.output_flat)[0], tf.float32)

    def get_value(self) -> Any:
        """Return the loss: a scalar, or values that are summed; None if there is only an error."""
        raise CodeError("the loss class %s has no get_value()." % type(self).__name__)

    def get_error(self) -> Any:
        """Return the error as a scalar, or None."""
        return None

    @classmethod
    def get_auto_output_layer_dim(cls, target_dim: int) -> int:
        """Return the size of the layer for a target of this size."""
        return target_dim

"""Losses and errors of a network without training, on batches and whole datasets."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, Iterable, List, Mapping

from returnn_tf.engine.passes.epoch_pass import Pass, PassResult
from returnn_tf.engine.passes.unusable_scores import UnusableScores
from returnn_tf.engine.support.step_result import Packer, StepResult
from returnn_tf.util.lazy_tf import tf


class Evaluator:
    """A traced function from a batch to its losses and errors; dropout and the like are off."""

    def __init__(self, net: Any, config: Any) -> None:
        """
        :param net: Network, made for training or not; its variables are shared
        :param config: Config, for ``calculate_exp_loss`` and ``log_batch_size``
        """
        self.net = net
        self._config = config
        self._packer = Packer()
        self._functions: Dict[FrozenSet[str], Any] = {}

    def step(self, feed: Mapping[str, Any]) -> StepResult:
        """Losses and errors of one batch.

        :param feed: feed key -> array or tensor, batch axis first
        """
        tensors = self.net.convert_feed(feed)
        keys = frozenset(tensors)
        if keys not in self._functions:
            signature = {name: spec for name, spec in self.net.input_signature().items() if name in keys}
            function = tf.function(self._emit, input_signature=[signature], autograph=False)
            self._functions[keys] = function.get_concrete_function()
        return self._packer.unpack(self._functions[keys](tensors).numpy())

    def run(self, name: str, epoch: int, batches: Iterable[Any], **options: Any) -> PassResult:
        """A pass over a dataset. If losses or errors are NaN or Inf, a warning names the sequences.

        :param name: of the dataset, for the log
        :param epoch: of the model, for the log
        :param batches: of the dataset
        :param options: more of :class:`Pass`
        """
        phase = "%r eval epoch %i" % (name, epoch)
        unusable = UnusableScores(phase)
        one_pass = Pass(
            phase=phase,
            convert=self.net.convert_feed,
            step=lambda tensors, batch: unusable.add(batch, self.step(tensors)),
            normalized=normalized_losses(self.net),
            with_exp=self._config.bool("calculate_exp_loss", False),
            log_batch_size=self._config.bool("log_batch_size", False),
            **options,
        )
        result = one_pass.run(batches)
        unusable.warn(one_pass.world)
        return result

    def _emit(self, feed: Dict[str, Any]) -> Any:
        graph = self.net.lower(feed, train=False)
        return self._packer.pack(graph, {"total_loss": graph.total_loss})


def normalized_losses(net: Any) -> List[str]:
    """The losses of a network whose value is a mean over the batch (``use_normalized_loss``)."""
    return [node.name for node in net.plan.losses if node.loss.use_normalized_loss]

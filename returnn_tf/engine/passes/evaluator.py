"""Losses and errors of a network without training, on batches and whole datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.errors import SettingError
from returnn_tf.config.settings.logging import LoggingSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.passes.dump import dump_of
from returnn_tf.engine.passes.loss_positions import LossPositions
from returnn_tf.engine.passes.scored_pass import PassResult, ScoredPass
from returnn_tf.engine.passes.split_step import added_results, announce, halves, normalized_losses, why_whole
from returnn_tf.engine.passes.unusable_scores import UnusableScores
from returnn_tf.engine.support.scores import Scores
from returnn_tf.engine.support.step_result import Packer, StepResult
from returnn_tf.util.lazy_tf import tf


class Evaluator:
    """Traced function from a batch to its losses and errors; dropout and the like are off.

    :param net: Network, planned to train or evaluate; its variables are shared
    :param config: for ``calculate_exp_loss`` and ``log_batch_size``
    :param positions: what else each step returns
    :raises ConfigError: losses in loops are missing from the plan
    """

    def __init__(self, net: Network, config: Config, *, positions: Optional[LossPositions] = None) -> None:
        if net.plan.omitted_losses:
            raise SettingError(
                "The network lacks the loss of %r, as losses in loops exist only in networks to train or evaluate. "
                "Plan it by Network.from_config(config, evaluate=True)." % net.plan.omitted_losses[0]
            )
        self.net = net
        self._config = config
        self._packer = Packer()
        self._positions = positions
        self._function = net.feed_function(self._emit, jit_compile=net.jit_compile)

    def trace(self) -> None:
        """Trace the graph, which else the first step does."""
        self._function.trace()

    def step(self, feed: Mapping[str, Any]) -> StepResult:
        """Return losses and errors of one batch.

        A batch that does not fit into memory is computed in two halves, where these have the same sums.

        :param feed: feed key -> array or tensor, batch axis first
        """
        tensors = self._function.tensors(feed)
        try:
            return self._run(tensors)
        except tf.errors.ResourceExhaustedError:
            further = "" if self._positions is None else "losses by position are asked for"
            why = why_whole(self.net, tensors, further)
            announce("Evaluation", self.net, tensors, why)
            if why:
                raise
            one, other = map(self._run, halves(self.net, tensors))
            return added_results(self.net, one, other)

    def _run(self, tensors: Mapping[str, Any]) -> StepResult:
        vector, sinks, positions = self._function(tensors)
        result = self._packer.unpack(vector.numpy(), sinks)
        result.positions = {name: value.numpy() for name, value in positions.items()}
        return result

    def run(
        self,
        name: str,
        epoch: int,
        batches: Iterable[Any],
        *,
        world: Optional[World] = None,
        on_step: Optional[Callable[[Any, StepResult], None]] = None,
        between: Optional[Callable[[PassResult, Scores], None]] = None,
    ) -> PassResult:
        """Evaluate a dataset. If losses or errors are NaN or Inf, a warning names the sequences.

        :param name: of the dataset, for the log
        :param epoch: of the model, for the log
        :param batches: of the dataset
        :param world: the processes which share the batches; default: this one alone
        """
        phase = "%r eval epoch %i" % (name, epoch)
        unusable = UnusableScores(phase)
        one_pass = ScoredPass(
            phase=phase,
            convert=self._function.tensors,
            step=lambda tensors, batch: unusable.add(batch, self.step(tensors)),
            normalized=normalized_losses(self.net),
            with_exp=TrainingSettings(self._config).calculate_exp_loss,
            log_batch_size=LoggingSettings(self._config).log_batch_size,
            log_memory_usage=LoggingSettings(self._config).tf_log_memory_usage,
            world=World() if world is None else world,
            on_step=on_step,
            between=between,
            dump=dump_of(self.net, name, epoch, world),
        )
        with self.net.kept.another_pass():
            result = one_pass.run(batches)
        unusable.warn(one_pass.world)
        return result

    def _emit(self, feed: dict[str, Any]) -> Any:
        graph = self.net.lower(feed, train=False)
        packed = self._packer.pack(graph, {"total_loss": graph.total_loss})
        positions = {} if self._positions is None else self._positions.emit(graph)
        graph.run_updates()
        return packed, graph.sinks, positions

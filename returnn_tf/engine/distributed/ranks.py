"""The distributed part of a training step: common gradients or averaged parameters, and their single-process no-op."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, Optional

from returnn_tf.compiler.lower import Lowered
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.errors import DistributedDataError
from returnn_tf.config.settings.distributed import GRAD, Distributed
from returnn_tf.engine.distributed.control import SIZE, Control
from returnn_tf.engine.distributed.options import options_of
from returnn_tf.engine.distributed.param_sync import ParamSync
from returnn_tf.engine.distributed.reduction import GradReduction
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.engine.update.gradients import Gradients, MetaGradients
from returnn_tf.graph.after_step.meta_loss import MetaLoss
from returnn_tf.util.lazy_tf import tf

Converted = tuple[Any, Any]  # batch, tensors
_NOISE = 1000003  # prime: keeps seeds far apart


class Ranks:
    """Distributed hooks of a training step; this base class is the single-process no-op."""

    rate_factor = 1.0
    #: whether all ranks have the same parameters, losses and counts after every step
    in_step = False

    def __init__(self) -> None:
        self.control = Control()

    def join(self, batches: Iterable[Converted], any_batch: Optional[Callable[[], Any]]) -> Iterator[Converted]:
        """Yield the batches for the steps of this rank, see `joined_batches`.

        :param batches: (batch, tensors)
        :param any_batch: returns tensors for a rank which has no batch
        """
        self.control.reset()
        yield from batches

    def inputs(self, position: tuple[float, ...]) -> list[Any]:
        """Return further arguments of the traced step; position: step and rate."""
        return []

    def signature(self) -> list[Any]:
        """Return the ``tf.TensorSpec`` of `inputs`."""
        return []

    def share(self, graph: Lowered, inputs: tuple[Any, ...]) -> Lowered:
        """Return the graph with the objective of this rank."""
        return graph

    def reduce(
        self, grads: Gradients, graph: Lowered, total_loss: Any, inputs: tuple[Any, ...]
    ) -> tuple[Gradients, Lowered, Any, dict[str, Any]]:
        """Return common gradients, graph, loss, and further results of the step: fields of StepResult."""
        return grads, graph, total_loss, {}

    def share_of_meta_loss(self, inputs: tuple[Any, ...], loss: MetaLoss, count: Any) -> tuple[Any, float]:
        """Return the factors on a loss on gradients and in its gradient, see `Updater.meta_gradients`.

        :param count: number of gradient entries on this rank
        """
        return tf.constant(1.0), 1.0

    def reduce_meta(self, meta: MetaGradients, inputs: tuple[Any, ...]) -> MetaGradients:
        """Return gradients, values and counts of the losses on gradients, of all ranks."""
        return meta

    def run_updates(self, updates: list[Callable[[], Any]], results: Mapping[str, Any]) -> None:
        """Emit the updates by layers, e.g. of running means."""
        for update in updates:
            update()

    def idle(self) -> bool:
        """Return whether this rank has no batch for this step and computes nothing."""
        return False

    def why_not_again(self, *, means: bool) -> str:
        """Return why this rank can't do a step again after it failed for lack of memory; "": it can.

        :param means: whether there are losses that are means over the batch
        """
        return ""

    def after_step(self, result: StepResult) -> None:
        """Update the common flags."""
        self.control.unpack_alone()

    def long_phase(self, phase: str) -> None:
        """Report to the watchdog that something may take long."""

    def explain(self, exc: BaseException) -> Optional[Exception]:
        """Return the error to raise for a lost rank, see `World.explain`."""
        return None

    def synchronize(self, trainer: Any) -> None:
        """Make parameters and state equal on all ranks, before a checkpoint or an evaluation."""

    def broadcast(self, trainer: Any) -> None:
        """Give all ranks the parameters and the state of the chief."""

    def check_same(self, trainer: Any, when: str) -> None:
        """Compare the parameters of all ranks.

        :raises DataError: they differ
        """


class _Several(Ranks):
    def __init__(self, world: Any, options: Distributed, net: Network) -> None:
        super().__init__()
        self.world = world
        self.options = options
        self.rate_factor = float(world.size) if options.scale_learning_rate else 1.0
        net.noise_seed = net.seed + _NOISE * world.rank

    def long_phase(self, phase: str) -> None:
        self.world.heartbeat.long_phase(phase)

    def explain(self, exc: BaseException) -> Optional[Exception]:
        error: Optional[Exception] = self.world.explain(exc)
        return error

    def join(self, batches: Iterable[Converted], any_batch: Optional[Callable[[], Any]]) -> Iterator[Converted]:
        return joined_batches(batches, self.control, self.world.any, any_batch)

    def broadcast(self, trainer: Any) -> None:
        self.world.broadcast(_variables(trainer))

    def check_same(self, trainer: Any, when: str) -> None:
        sums = self.world.gather([self.world.name, _digest(_variables(trainer))])
        common = _most_frequent([digest for _, digest in sums])
        other = [name for name, digest in sums if digest != common]
        if other:
            raise DistributedDataError(
                "%s: the parameters of %s differ from those of the other ranks, so the ranks no longer train the same "
                "model. Memory or network of that host may be broken. Start again from the last checkpoint."
                % (when, ", ".join(other))
            )


class GradRanks(_Several):
    """Common gradients in each step, so that all ranks stay equal."""

    in_step = True

    def __init__(self, world: Any, options: Distributed, net: Network) -> None:
        super().__init__(world, options, net)
        self._reduction = GradReduction(world.collectives, options, net.plan.losses)
        self._steps = 0
        world.heartbeat.arrived = self._waits
        self._statistics = [
            net.stored_params[name]
            for name, spec in net.plan.params.items()
            if not (spec.trainable or spec.frozen) and net.stored_params[name].dtype.is_floating
        ]
        self._states = [var for var in net.stored_params.values() if not var.dtype.is_floating]

    def _waits(self) -> bool:
        """Return whether, within a step, this rank has its gradient and waits for those of the others."""
        return int(self._reduction.arrived.numpy()) >= self._steps

    def inputs(self, position: tuple[float, ...]) -> list[Any]:
        """Return the packed flags of this rank, float64 [`SIZE`]."""
        return [tf.constant(self.control.pack(*position), "float64")]

    def signature(self) -> list[Any]:
        """Return the spec of the packed flags."""
        return [tf.TensorSpec([SIZE], "float64", name="control")]

    def share(self, graph: Lowered, inputs: tuple[Any, ...]) -> Lowered:
        """Return the graph with the share of this rank in the common objective."""
        return self._reduction.share(graph, inputs[0])

    def reduce(
        self, grads: Gradients, graph: Lowered, total_loss: Any, inputs: tuple[Any, ...]
    ) -> tuple[Gradients, Lowered, Any, dict[str, Any]]:
        """Sum gradients, losses and flags over the ranks."""
        own = grads.norm
        common, graph, total, flags = self._reduction.reduce(grads, graph, inputs[0], total_loss)
        results = {"flag_sums_%i" % index: value for index, value in enumerate(tf.unstack(flags))}
        results["communication"] = self._reduction.seconds
        results["own"] = inputs[0][0]
        results["own_finite"] = tf.logical_and(tf.math.is_finite(own), tf.math.is_finite(total_loss))
        return common, graph, total, results

    def share_of_meta_loss(self, inputs: tuple[Any, ...], loss: MetaLoss, count: Any) -> tuple[Any, float]:
        """Return the factors on a loss on gradients and in its gradient, with which the shares of all ranks sum up."""
        return self._reduction.share_of_meta_loss(loss, count, inputs[0])

    def reduce_meta(self, meta: MetaGradients, inputs: tuple[Any, ...]) -> MetaGradients:
        """Sum gradients, values and counts over the ranks."""
        return self._reduction.reduce_meta(meta, inputs[0])

    def run_updates(self, updates: list[Callable[[], Any]], results: Mapping[str, Any]) -> None:
        """Emit the updates unless this rank is idle, then average the statistics over the ranks."""
        if not updates:
            return

        def run() -> Any:
            for update in updates:
                update()
            return tf.constant(True)

        own, active = results["own"], results["flag_sums_0"]
        done = tf.cond(own > 0, run, lambda: tf.constant(False))
        with tf.control_dependencies([done]):
            variables = self._statistics
            for variable, value in zip(variables, self._reduction.average(variables, own, active)):
                variable.assign(value)

    def why_not_again(self, *, means: bool) -> str:
        """Return why not, see `Ranks.why_not_again`: what was sent to the other ranks can't be sent again."""
        if int(self._reduction.begun.numpy()) >= self._steps:
            return "some of its gradients are sent already"
        return "the ranks share the number of frames of a loss with use_normalized_loss" if means else ""

    def synchronize(self, trainer: Any) -> None:
        """Give all ranks the counters and the states of random number generators of the chief.

        How far a generator is depends on the size of the batches.
        """
        if self._states:
            self.world.broadcast(self._states)

    def after_step(self, result: StepResult) -> None:
        """Update the common flags from their sums.

        :raises DataError: the ranks are not at the same step
        """
        self._steps += 1
        if not self.control.unpack(result.flag_sums, self.world.size):
            places = self.world.gather([self.world.name, result.step, result.learning_rate])
            text = ", ".join("%s: step %s, learning rate %s" % tuple(place) for place in places)
            raise DistributedDataError("The ranks do not do the same step: %s." % text)


class ParamRanks(_Several):
    """Local updates on each rank, with periodic averaging of the parameters."""

    def __init__(self, world: Any, options: Distributed, net: Network) -> None:
        super().__init__(world, options, net)
        self._sync = ParamSync(world, options, list(net.stored_params.values()))
        self._whole: Optional[ParamSync] = None

    def idle(self) -> bool:
        """Return whether this rank has no batch: it computes nothing until the next averaging."""
        return not self.control.own

    def after_step(self, result: StepResult) -> None:
        """Average the parameters if due; record the time as communication."""
        if self._sync.after_step(self.control):
            result.communication = self._sync.seconds

    def synchronize(self, trainer: Any) -> None:
        """Average parameters and optimizer state, so that resuming is equivalent to continuing."""
        variables = _variables(trainer)
        if self._whole is None:
            self._whole = ParamSync(self.world, self.options, variables)
        self._whole.once()
        self.world.broadcast([var for var in variables if not var.dtype.is_floating])


def ranks_for(world: World, config: Config, net: Network) -> Ranks:
    """Return the ranks of a world with the settings of a config.

    :raises ConfigError: wrong settings
    """
    if world.size == 1:
        return Ranks()
    options = options_of(config)
    return (GradRanks if options.reduce == GRAD else ParamRanks)(world, options, net)


def _variables(trainer: Any) -> list[Any]:
    named = {
        "": trainer.net.global_step,
        **trainer.net.stored_params,
        **{"/" + k: v for k, v in trainer.state().items()},
    }
    return [named[name] for name in sorted(named)]


def _digest(variables: list[Any]) -> str:
    digest = hashlib.sha256()
    for var in variables:
        digest.update(var.numpy().tobytes())
    return digest.hexdigest()[:16]


def _most_frequent(values: list[str]) -> str:
    return max(values, key=lambda value: (values.count(value), -values.index(value)))


class IdleBatch:
    """Placeholder without sequences for a step in which this rank has no batch.

    :param number: batch number to report
    """

    complete = 1.0
    num_seqs = 0
    num_rows = 0

    def __init__(self, number: int) -> None:
        self.number = number
        self.feed: dict[str, Any] = {}
        self.seq_tags: list[str] = []
        self.seq_indices: list[int] = []
        self.num_frames: dict[str, int] = {}
        self.max_frames: dict[str, int] = {}


def joined_batches(
    batches: Iterable[Converted],
    control: Control,
    agree: Callable[[bool], bool],
    any_batch: Optional[Callable[[], Any]] = None,
) -> Iterator[Converted]:
    """Yield the batches of this rank, then idle ones for as long as another rank has batches.

    The caller does one step with each, which updates ``control``. An idle step computes the last batch again, with
    weight zero.

    :param batches: (batch, tensors) of this rank
    :param control: of the trainer
    :param agree: returns whether its argument is true on any rank; called once at the start
    :param any_batch: returns tensors to compute with if this rank has no batch at all
    """
    control.reset()
    iterator = iter(batches)
    following = next(iterator, None)
    if not agree(following is not None):
        return
    tensors, number, has_some = None, 0, following is not None
    while following is not None:
        batch, tensors = following
        number = batch.number + 1
        following = next(iterator, None)
        control.own, control.more = True, following is not None
        yield batch, tensors
        del batch
    if not has_some:
        tensors, control.any_more = None if any_batch is None else any_batch(), True
    control.own, control.more = False, False
    while control.any_more:
        yield IdleBatch(number), tensors

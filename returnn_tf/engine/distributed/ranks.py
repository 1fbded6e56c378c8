"""What a trainer does together with the other ranks, and what it does if there are none."""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from returnn_tf.config import DataError
from returnn_tf.engine.distributed.control import SIZE, Control
from returnn_tf.engine.distributed.options import GRAD, HorovodOptions
from returnn_tf.engine.distributed.param_sync import ParamSync
from returnn_tf.engine.distributed.reduction import GradReduction
from returnn_tf.engine.distributed.turns import taken_together
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.update.gradients import Gradients
from returnn_tf.util.lazy_tf import tf

Converted = Tuple[Any, Any]
_NOISE = 1000003  # prime: far apart seeds


class Ranks:
    """The part of a training step which concerns the other ranks. This class: there are none."""

    rate_factor = 1.0
    #: whether all ranks have the same parameters, losses and counts after every step
    in_step = False

    def __init__(self) -> None:
        self.control = Control()

    def take_part(self, batches: Iterable[Converted], any_batch: Optional[Callable[[], Any]]) -> Iterator[Converted]:
        """The batches to do a step with, see :func:`taken_together`.

        :param batches: (batch, tensors)
        :param any_batch: gives tensors for a rank which has no batch
        """
        self.control.reset()
        yield from batches

    def inputs(self, position: Tuple[float, ...]) -> List[Any]:
        """Further arguments of the traced step; position: step and rate."""
        return []

    def signature(self) -> List[Any]:
        """The ``tf.TensorSpec`` of :meth:`inputs`."""
        return []

    def share(self, graph: Any, inputs: Tuple[Any, ...]) -> Any:
        """The graph with the objective of this rank."""
        return graph

    def reduce(
        self, grads: Gradients, graph: Any, total_loss: Any, inputs: Tuple[Any, ...]
    ) -> Tuple[Gradients, Any, Any, Dict[str, Any]]:
        """Common gradients, graph, loss, and further results of the step: fields of StepResult."""
        return grads, graph, total_loss, {}

    def run_updates(self, updates: List[Callable[[], Any]], results: Mapping[str, Any]) -> None:
        """Emits what layers change themselves, e.g. running means."""
        for update in updates:
            update()

    def idle(self) -> bool:
        """Whether this rank has no batch for this step and computes nothing."""
        return False

    def after_step(self, result: Any) -> None:
        """Takes in what the others said.

        :param result: StepResult
        """
        self.control.alone()

    def lasting(self, phase: str) -> None:
        """Tells the others that something may take long."""

    def explain(self, exc: BaseException) -> Optional[Exception]:
        """See `World.explain`."""
        return None

    def same_everywhere(self, trainer: Any) -> None:
        """Makes parameters and state equal on all ranks: before a checkpoint and an evaluation."""

    def broadcast(self, trainer: Any) -> None:
        """Gives all ranks the parameters and the state of the chief."""

    def check_same(self, trainer: Any, when: str) -> None:
        """Compares the parameters of all ranks.

        :raises DataError: they differ
        """


class _Several(Ranks):
    def __init__(self, world: Any, options: HorovodOptions, net: Any) -> None:
        super().__init__()
        self.world = world
        self.options = options
        self.rate_factor = float(world.size) if options.scale_lr else 1.0
        net.noise_seed = net.seed + _NOISE * world.rank

    def lasting(self, phase: str) -> None:
        self.world.board.lasting(phase)

    def explain(self, exc: BaseException) -> Optional[Exception]:
        return self.world.explain(exc)

    def take_part(self, batches: Iterable[Converted], any_batch: Optional[Callable[[], Any]]) -> Iterator[Converted]:
        return taken_together(batches, self.control, self.world.any, any_batch)

    def broadcast(self, trainer: Any) -> None:
        self.world.broadcast(_variables(trainer))

    def check_same(self, trainer: Any, when: str) -> None:
        sums = self.world.gather([self.world.name, _digest(_variables(trainer))])
        common = _most_frequent([digest for _, digest in sums])
        other = [name for name, digest in sums if digest != common]
        if other:
            raise DataError(
                "%s: the parameters of %s differ from those of the other ranks, so the ranks no longer train the same "
                "model. Memory or network of that host may be broken. Start again from the last checkpoint."
                % (when, ", ".join(other))
            )


class GradRanks(_Several):
    """Common gradients in each step: all ranks stay equal."""

    in_step = True

    def __init__(self, world: Any, options: HorovodOptions, net: Any) -> None:
        super().__init__(world, options, net)
        self._reduction = GradReduction(world.hvd, world.size, options, net.plan.losses)
        self._steps = 0
        world.board.arrived = self._waits
        self._statistics = [
            net.params[name]
            for name, spec in net.param_specs.items()
            if not spec.trainable and net.params[name].dtype.is_floating
        ]

    def _waits(self) -> bool:
        """Within a step: whether this rank has its gradient and waits for those of the others."""
        return int(self._reduction.arrived.numpy()) >= self._steps

    def inputs(self, position: Tuple[float, ...]) -> List[Any]:
        return [tf.constant(self.control.say(*position), "float64")]

    def signature(self) -> List[Any]:
        return [tf.TensorSpec([SIZE], "float64", name="control")]

    def share(self, graph: Any, inputs: Tuple[Any, ...]) -> Any:
        return self._reduction.share(graph, inputs[0])

    def reduce(
        self, grads: Gradients, graph: Any, total_loss: Any, inputs: Tuple[Any, ...]
    ) -> Tuple[Gradients, Any, Any, Dict[str, Any]]:
        own = grads.norm
        common, graph, total, heard = self._reduction.reduce(grads, graph, inputs[0], total_loss)
        results = {"heard_%i" % index: value for index, value in enumerate(tf.unstack(heard))}
        results["communication"] = self._reduction.seconds
        results["own"] = inputs[0][0]
        results["own_finite"] = tf.logical_and(tf.math.is_finite(own), tf.math.is_finite(total_loss))
        return common, graph, total, results

    def run_updates(self, updates: List[Callable[[], Any]], results: Mapping[str, Any]) -> None:
        if not updates:
            return

        def run() -> Any:
            for update in updates:
                update()
            return tf.constant(True)

        own, active = results["own"], results["heard_0"]
        done = tf.cond(own > 0, run, lambda: tf.constant(False))
        with tf.control_dependencies([done]):
            variables = self._statistics
            for variable, value in zip(variables, self._reduction.average(variables, own, active)):
                variable.assign(value)

    def after_step(self, result: Any) -> None:
        self._steps += 1
        if not self.control.hear(result.heard, self.world.size):
            places = self.world.gather([self.world.name, result.step, result.learning_rate])
            text = ", ".join("%s: step %s, learning rate %s" % tuple(place) for place in places)
            raise DataError("The ranks do not do the same step: %s." % text)


class ParamRanks(_Several):
    """Own updates on each rank, and the mean of the parameters from time to time."""

    def __init__(self, world: Any, options: HorovodOptions, net: Any) -> None:
        super().__init__(world, options, net)
        self._sync = ParamSync(world, options, list(net.params.values()))
        self._whole: Optional[ParamSync] = None

    def idle(self) -> bool:
        return not self.control.own

    def after_step(self, result: Any) -> None:
        if self._sync.after_step(self.control):
            result.communication = self._sync.seconds

    def same_everywhere(self, trainer: Any) -> None:
        """The mean of the optimizer's state too, so that a run goes on from a checkpoint as if it had not ended."""
        variables = _variables(trainer)
        if self._whole is None:
            self._whole = ParamSync(self.world, self.options, variables)
        self._whole.once()
        self.world.broadcast([var for var in variables if not var.dtype.is_floating])


def ranks_for(world: World, config: Any, net: Any) -> Ranks:
    """The ranks of a world with the settings of a config.

    :raises ConfigError: wrong settings
    """
    options = HorovodOptions.from_config(config)
    if world.size == 1:
        return Ranks()
    return (GradRanks if options.reduce_type == GRAD else ParamRanks)(world, options, net)


def _variables(trainer: Any) -> List[Any]:
    named = {"": trainer.net.global_step, **trainer.net.params, **{"/" + k: v for k, v in trainer.state().items()}}
    return [named[name] for name in sorted(named)]


def _digest(variables: List[Any]) -> str:
    digest = hashlib.sha256()
    for var in variables:
        digest.update(var.numpy().tobytes())
    return digest.hexdigest()[:16]


def _most_frequent(values: List[str]) -> str:
    return max(values, key=lambda value: (values.count(value), -values.index(value)))

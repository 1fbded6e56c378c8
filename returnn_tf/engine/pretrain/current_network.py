"""Network, trainer and evaluator of the current epoch, and the transition to the next one."""

from __future__ import annotations

import contextlib
from typing import Any, Optional

from numpy.typing import NDArray

from returnn_tf.compiler.describe import log_templates
from returnn_tf.compiler.network import Network
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.derived import overridden
from returnn_tf.config.errors import PretrainError
from returnn_tf.config.settings import Effect, settings_with
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.checkpoints import preload
from returnn_tf.engine.checkpoints.restoring import restore_state
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.passes.evaluator import Evaluator
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.pretrain.carry_over import Transfer, carried_values, plan_transfer
from returnn_tf.engine.pretrain.checks import plan_of
from returnn_tf.engine.pretrain.schedule import EpochNetwork
from returnn_tf.logging.log import log

#: Settings without effect on the training step.
_NOT_OF_THE_STEP = settings_with(Effect.RATES | Effect.BATCHES | Effect.DATASETS)


class CurrentNetwork:
    """Network, trainer and evaluator; `enter` switches them to another epoch.

    :param config: whose values change with ``#config``
    :param trainer: of this process, whose network is trained further if it is the planned one
    """

    entry: EpochNetwork
    net: Network
    trainer: StepTrainer
    evaluator: Evaluator

    def __init__(self, config: Config, world: Optional[World] = None, trainer: Optional[StepTrainer] = None) -> None:
        self._world = world
        self._given = trainer
        self._config = config
        self._settings = contextlib.ExitStack()
        self._entered = False

    def begin(self, entry: EpochNetwork, plan: Optional[Plan] = None) -> None:
        """Build the first network, by its plan if it is planned already."""
        self._set(entry)
        self._build(entry, plan or plan_of(entry))
        self._entered = True

    def enter(self, entry: EpochNetwork) -> bool:
        """Switch to the network and the settings of another epoch; what is unchanged stays as it is.

        Files that layers of the old network write are complete before the new one is built.

        :return: whether the network has changed
        :raises DataError: such a file can't be written
        """
        if entry.same_network(self.entry):
            if not entry.same_settings(self.entry):
                self._change_settings(entry)
            self.entry = entry
            return False
        self.net.sinks.close()
        old_plan, values, step = self.net.plan, self.net.get_param_values(), self.trainer.step_count
        state = {name: var.numpy() for name, var in self.trainer.state().items()}
        self._set(entry)
        plan = plan_of(entry)
        transfer = plan_transfer(old_plan, plan, entry.mode_of)
        self.net.sinks.close()
        del self.net, self.trainer, self.evaluator  # their memory is needed
        self._build(entry, plan)
        self._carry(transfer, values)
        self.net.global_step.assign(step)
        kept = self._carry_state(transfer, state)
        info = "" if entry.info is None else " (%s)" % (entry.info,)
        log.write(3, "Now %s%s; parameters: %s; optimizer state: %s" % (entry.name, info, transfer, kept))
        return True

    def close(self) -> None:
        """Restore the values of the config."""
        self._settings.close()

    def _set(self, entry: EpochNetwork) -> None:
        self._settings.close()
        self._settings.enter_context(overridden(self._config, entry.settings))
        if entry.settings or (self._entered and self.entry.settings):
            shown = ", ".join("%s = %r" % item for item in entry.settings.items())
            log.write(3, "Settings now: %s" % (shown or "those of the config again"))

    def _build(self, entry: EpochNetwork, plan: Plan) -> None:
        config = entry.config
        self.entry = entry
        log_templates(plan, config)
        if self._given is not None:
            self.trainer, self._given = self._given, None
            self.net = self.trainer.net
            _check_same_params(self.net, plan)
        else:
            self.net = Network(plan, config, seed=TrainingSettings(config).random_seed)
            self.trainer = StepTrainer(self.net, config, self._world)
        self.evaluator = Evaluator(self.net, config)

    def _change_settings(self, entry: EpochNetwork) -> None:
        """Keep the network but change settings; retrace the step functions only if these depend on them."""
        self._set(entry)
        if entry.same_settings(self.entry, but=_NOT_OF_THE_STEP):
            return
        old = self.trainer
        state = {name: var.numpy() for name, var in old.state().items()}
        self.net.config = entry.config
        self.trainer = StepTrainer(self.net, entry.config, self._world)
        self.evaluator = Evaluator(self.net, entry.config)
        restore_state(self.trainer, state)

    def _carry_state(self, transfer: Transfer, state: dict[str, NDArray[Any]]) -> str:
        """Keep the optimizer state if no parameter is new or has changed; return a text for the log.

        Otherwise all of it is reset: an optimizer has one update count for all of its parameters, and with the count of
        the old ones the updates of new ones would be much too large.
        """
        if transfer.fresh or transfer.reset or transfer.grown:
            return "reset"
        left = restore_state(self.trainer, state)
        return "reset for %s" % ", ".join(left) if left else "kept"

    def _carry(self, transfer: Transfer, values: dict[str, NDArray[Any]]) -> None:
        specs = self.net.plan.params
        changed: dict[str, Any] = carried_values(transfer, values, lambda name: self.net.initial_value(specs[name]))
        for name, value in changed.items():
            variable = self.net.stored_params[name]
            variable.assign(value.astype(variable.dtype.as_numpy_dtype, copy=False))
        plain = self.net.plan.plain_params
        new = {name: self.net.stored_params[name] for name in transfer.fresh + transfer.reset if name in plain}
        preload.load_on_init(self.net.plan, new)


def _check_same_params(net: Network, plan: Plan) -> None:
    """Check that a network is one that a plan describes.

    :raises ConfigError: it has other parameters
    """
    own, planned = ({name: spec.shape for name, spec in specs.items()} for specs in (net.plan.params, plan.params))
    if own != planned:
        names = sorted(name for name in {*own, *planned} if own.get(name) != planned.get(name))
        raise PretrainError(
            "The network of the trainer is not that of its config: %s. Make both from the same config: "
            "Trainer(Network.from_config(config, train=True), config)." % ", ".join(names)
        )

"""Planning of all networks of a run before training, so that a mistake in a late one is found at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Optional

from returnn_tf.compiler.lower import needed_extern_keys
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config.derived import overridden
from returnn_tf.config.errors import ConfigError, PretrainError, TargetError
from returnn_tf.engine.pretrain.carry_over import Transfer, misfit_text, plan_transfer
from returnn_tf.engine.pretrain.schedule import EpochNetwork, NetworkSchedule
from returnn_tf.logging.log import log
from returnn_tf.logging.text import counted
from returnn_tf.tensor import Data

#: Maximum number of networks checked before training; later ones are checked when they start.
MAX_PLANNED = 60

Planned = list[tuple[EpochNetwork, Plan]]


@dataclasses.dataclass(frozen=True)
class Stage:
    """Successive epochs that train the same network with the same settings.

    :param transfer: how the parameters come from the stage before; None in the first one, or if the network is the same
    """

    first: int
    last: int
    entry: EpochNetwork
    plan: Plan
    transfer: Optional[Transfer]


def planned_networks(schedule: NetworkSchedule, first: int, last: int) -> Planned:
    """Return the distinct networks of these epochs with their training plans, checking each transition.

    Warns of parameters that are initialised again because they have another shape.

    :raises ConfigError: names the step and the problem in its network
    """
    if last < schedule.pretrain_epochs:
        log.warn("Pretraining takes %d epochs, but the last epoch is %d." % (schedule.pretrain_epochs, last))
    entries = schedule.distinct(first, last)
    if len(entries) > MAX_PLANNED:
        log.write(4, "%d different networks; only the first %d are checked now." % (len(entries), MAX_PLANNED))
    result: Planned = []
    for entry in entries[:MAX_PLANNED]:
        if result and result[-1][0].same_network(entry):
            result.append((entry, result[-1][1]))
            continue
        plan = plan_of(entry)
        if result:
            warning = misfit_text(plan_transfer(result[-1][1], plan, entry.mode_of), result[-1][0].name, entry.name)
            if warning is not None:
                log.warn(warning)
        result.append((entry, plan))
    return result


def needed_data(planned: Planned) -> dict[str, Data]:
    """Return the data keys needed by any of the networks, with their declaration."""
    needed: dict[str, Data] = {}
    for _, plan in planned:
        for key in needed_extern_keys(plan, plan.roots(), True):
            needed.setdefault(key, plan.extern_data[key])
    return needed


def plan_of(entry: EpochNetwork) -> Plan:
    """Return the training plan of a network.

    :raises ConfigError: invalid network; names the step
    """
    try:
        with overridden(entry.base, entry.settings):
            plan = plan_from_config(entry.config, train=True)
    except ConfigError as exc:
        if entry.name == "the network of the config":
            raise
        raise PretrainError("%s: %s" % (entry.name, exc)) from exc
    if entry.trainable and not plan.losses:
        name = "The network" if entry.name == "the network of the config" else "The network of %s" % entry.name
        raise TargetError("%s has no loss, so there is nothing to train. Give a layer the option 'loss'." % name)
    return plan


def describe(schedule: NetworkSchedule, planned: Planned, first: int, last: int) -> str:
    """Return one line per network: epochs, layers, parameters, settings, and transfer of the parameters."""
    lines = []
    for stage in stages(schedule, planned, first, last):
        entry, begin, end = stage.entry, stage.first, stage.last
        epochs = "epoch %d" % begin if begin == end else "epochs %d-%d" % (begin, end)
        count = sum(spec.size for spec in stage.plan.params.values())
        sizes = counted(len(entry.layers), "layer"), counted(count, "parameter")
        text = "%s: %s, %s, %s" % (epochs, entry.name, *sizes)
        if not entry.trainable:
            text += ", not trained"
        if entry.settings:
            text += ", sets %s" % ", ".join("%s = %r" % item for item in entry.settings.items())
        if stage.transfer is not None:
            text += "\n  parameters: %s" % stage.transfer
        lines.append(text)
    return "\n".join(lines)


def stages(schedule: NetworkSchedule, planned: Planned, first: int, last: int) -> Iterator[Stage]:
    """Return the stages of these epochs, as far as their networks are planned."""
    before: Optional[Plan] = None
    for (entry, plan), (begin, end) in zip(planned, _spans(schedule, first, last)):
        transfer = None if before is None or before is plan else plan_transfer(before, plan, entry.mode_of)
        yield Stage(begin, end, entry, plan, transfer)
        before = plan


def _spans(schedule: NetworkSchedule, first: int, last: int) -> list[tuple[int, int]]:
    starts: dict[int, EpochNetwork] = {}
    current: Any = None
    for epoch in range(first, last + 1):
        entry = schedule.at(epoch)
        if current is None or not entry.same_training(current):
            starts[epoch] = current = entry
    begins = list(starts)
    return list(zip(begins, [begin - 1 for begin in begins[1:]] + [last]))

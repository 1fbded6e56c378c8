"""Averages of the parameters over the updates, which evaluation, checkpoints and exports have in their place.

They are moving averages, the setting ``weight_average``, or those that an optimizer keeps by its rule. In a checkpoint,
the parameters are those that evaluation has, so that whatever reads it has them, too. The others are beside them, among
what only an exact resume needs: ``current/<parameter>``, or ``average/<parameter>`` if evaluation has the current ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from returnn_tf.config import Config
from returnn_tf.config.errors import RateError
from returnn_tf.config.options import from_options
from returnn_tf.config.settings.update import BOTH, CURRENT, UpdateSettings, WeightAverage
from returnn_tf.engine.update.updater import Updater
from returnn_tf.logging.log import log
from returnn_tf.native.fused.update import LEAST_SIZE, AverageRule, native_update
from returnn_tf.native.fused.update_trials import update_ops_for
from returnn_tf.util.lazy_tf import tf

_CURRENT, _AVERAGE = "current/", "average/"
_UPDATES = "weight_average/updates"
_WARM_UP = 9.0

Values = dict[str, Any]


class Averages:
    """The averages of a training; none without ``weight_average``, unless the optimizer keeps some.

    :param variables: the parameters that are updated, by name
    :raises ConfigError: a wrong option, or one for which there is no average
    """

    def __init__(self, config: Config, variables: Mapping[str, Any], updater: Updater) -> None:
        self._options = options_of(config)
        self._of_optimizer = updater.averaged
        check(config, self._of_optimizer)
        self._variables, self._updater = variables, updater
        self._interval = updater.interval * self._options.every
        self._kept: Values = {}
        if self._options.decay is not None:
            self._kept = {name: tf.Variable(var, trainable=False, name="average") for name, var in variables.items()}
            self._updates = tf.Variable(0, dtype="int64", trainable=False, name="averaged_updates")
        if self:
            log.write(4, "Parameters in evaluation and checkpoints: %s" % self._options.evaluate)

    def __bool__(self) -> bool:
        return bool(self._kept or self._of_optimizer)

    @property
    def replace(self) -> bool:
        """Return whether evaluation and checkpoints have the averages in place of the current parameters."""
        return bool(self) and self._options.evaluate != CURRENT

    @property
    def both(self) -> bool:
        """Return whether the current parameters are evaluated, too."""
        return bool(self) and self._options.evaluate == BOTH

    def state(self) -> Values:
        """Return the variables needed for an exact resume, by name; an optimizer has those of its averages."""
        if not self._kept:
            return {}
        return {_UPDATES: self._updates, **{_AVERAGE + name: var for name, var in self._kept.items()}}

    def begin(self, names: Iterable[str]) -> None:
        """Let some of the averages in `state` be the parameters, which have values since; other names are ignored."""
        for name in names:
            of_param = name[len(_AVERAGE) :]
            if name.startswith(_AVERAGE) and of_param in self._kept:
                self._kept[of_param].assign(self._variables[of_param])

    def values(self) -> Values:
        """Return the averages by the names of their parameters; before the first update, these are the parameters."""
        if not self._kept:
            return self._updater.averages()
        return dict(self._kept) if int(self._updates.numpy()) else {name: self._variables[name] for name in self._kept}

    def emit(self, step: Any) -> None:
        """Emit the update of the moving averages after that of the parameters.

        :param step: int64 scalar, global train step before it is increased
        """
        if not self._kept:
            return
        if self._interval == 1:
            self._update()
        else:
            due = tf.equal(step % self._interval, self._interval - 1)
            tf.cond(due, self._update, lambda: tf.constant(False))

    def _update(self) -> Any:
        done = tf.cast(self._updates.read_value(), "float64")
        decay = tf.constant(self._options.decay, "float64")
        if self._options.warmup:
            decay = tf.minimum(decay, done / (done + _WARM_UP))
        rate = 1.0 - tf.where(done > 0.0, decay, tf.zeros_like(decay))  # the first one copies what was loaded since
        large = [name for name, var in self._kept.items() if var.dtype == tf.float32]
        size = sum(self._kept[name].shape.num_elements() for name in large)
        rule = AverageRule(rate)
        ops = update_ops_for(rule, size) if size >= LEAST_SIZE else None
        if ops is not None:
            values = [self._variables[name].read_value() for name in large]
            native_update(ops, rule, [self._kept[name] for name in large], [[] for _ in large], values)
        for name, var in self._kept.items():
            if ops is None or name not in large:
                var.assign_add(tf.cast(rate, var.dtype) * (self._variables[name] - var))
        self._updates.assign_add(1)
        return tf.constant(True)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the parameters have the values of the averages; exactly those of before at the end."""
        with contextlib.ExitStack() as stack:
            for name, value in self.values().items():
                variable = self._variables[name]
                stack.callback(variable.assign, tf.identity(variable))
                variable.assign(value)
            yield

    def in_evaluation(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the parameters are those of evaluation."""
        return self.in_place() if self.replace else contextlib.nullcontext()

    def stored(self, params: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[Values, Values]:
        """Return the parameters and the further state of a checkpoint.

        :param params: those of the network
        :param state: that of the trainer
        """
        if not self:
            return dict(params), dict(state)
        values = self.values()
        own = {_AVERAGE + name for name in self._kept}
        state = {name: value for name, value in state.items() if name not in own}
        if not self.replace:
            return dict(params), {**state, **{_AVERAGE + name: value for name, value in values.items()}}
        return {**params, **values}, {**state, **{_CURRENT + name: params[name] for name in values}}


def options_of(config: Config) -> WeightAverage:
    """Return the options of ``weight_average``.

    :raises ConfigError: a wrong one
    """
    settings = UpdateSettings(config)
    return from_options(WeightAverage, settings.weight_average or {}, where=settings.describe_source("weight_average"))


def check(config: Config, of_optimizer: str) -> None:
    """Check that there is one kind of averages if ``weight_average`` asks for some.

    :param of_optimizer: class of the optimizer that keeps averages, or ""
    :raises ConfigError: there are none, or two; or a wrong option
    """
    options, settings = options_of(config), UpdateSettings(config)
    where = settings.describe_source("weight_average")
    if options.decay is not None and of_optimizer:
        raise RateError(
            "%s: 'decay' makes moving averages, but the optimizer %s keeps averages of its own. Remove 'decay'."
            % (where, of_optimizer)
        )
    if settings.weight_average is not None and options.decay is None and not of_optimizer:
        raise RateError("%s: 'decay' is missing, e.g. weight_average = {'decay': 0.999}." % where)


def name_of_current(dataset: str) -> str:
    """Return the name of the scores of the current parameters on a dataset, where those of averages have its name."""
    return "current_" + dataset


def training_values(params: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[Values, Values]:
    """Return parameters and state with which training goes on, given those of a checkpoint.

    The state has all averages as ``average/<parameter>``.
    """
    current = _of_params(params, _CURRENT, state)
    averages = {_AVERAGE + name: params[name] for name in current}
    return {**params, **current}, {**state, **averages}


def chosen_values(params: Mapping[str, Any], state: Mapping[str, Any], *, averages: bool, source: str) -> Values:
    """Return the parameters of a checkpoint: averages, or those with which training goes on.

    :param source: the checkpoint, for errors
    :raises ConfigError: it has no averages
    """
    current, stored = _of_params(params, _CURRENT, state), _of_params(params, _AVERAGE, state)
    if averages and not (current or stored):
        raise RateError(
            "load_average = True, but %s has no averages of parameters. Train with weight_average, e.g. {'decay': "
            "0.999}, or remove load_average." % source
        )
    return {**params, **(stored if averages else current)}


def _of_params(params: Mapping[str, Any], prefix: str, state: Mapping[str, Any]) -> Values:
    """Return what a state has of parameters under a prefix, which layers may have as their names, too."""
    return {name: state[prefix + name] for name in params if prefix + name in state}

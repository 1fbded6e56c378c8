"""Checks of callbacks before training begins: how their methods are called, and the scores that they name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional

from returnn_tf.config import ConfigError, did_you_mean, nearest_name
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.pretrain.checks import MAX_PLANNED, Planned
from returnn_tf.graph.loss import Loss

_KERAS_LIKE = 0.7  # similarity of a name to that of a method; on_batch_end is like on_epoch_end


def check_methods(callback: Any, base: type, where: str) -> None:
    """Check that the methods of a callback can be called as those of its base class.

    :param base: the class whose methods ``on_...`` are called
    :param where: how errors begin
    :raises ConfigError: one takes other arguments, or has a name that is never called
    """
    kind = type(callback)
    hooks = [name for name in vars(base) if name.startswith("on_")]
    for name in hooks:
        if getattr(kind, name) is not getattr(base, name) or name in vars(callback):
            wanted = list(inspect.signature(getattr(base, name)).parameters)[1:]
            check_call(getattr(callback, name), wanted, "%s: %s.%s" % (where, kind.__name__, name), method=True)
    for name in dir(kind):
        if name.startswith("on_") and name not in hooks and callable(getattr(kind, name)):
            near = nearest_name(name, hooks, cutoff=_KERAS_LIKE)
            if near is not None and getattr(kind, near) is getattr(base, near):
                raise ConfigError(
                    "%s: %s.%s is never called. Did you mean %r? Callbacks have %s."
                    % (where, kind.__name__, name, near, ", ".join(hooks))
                )


def check_call(function: Callable[..., Any], wanted: Sequence[str], what: str, *, method: bool = False) -> None:
    """Check that a function can be called with arguments by position.

    :param wanted: their names
    :param what: the function, for the error
    :raises ConfigError: it can't
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some functions in C it is not known
        return
    try:
        signature.bind(*wanted)
    except TypeError:
        name = getattr(function, "__name__", "") or "function"
        own = name if name.isidentifier() else "function"
        raise ConfigError(
            "%s takes %s, but is called with one argument, %s. Write def %s(%s)."
            % (what, _parameters(signature), wanted[0], own, ", ".join(["self"] * method + list(wanted)))
        ) from None


def _parameters(signature: inspect.Signature) -> str:
    names = list(signature.parameters)
    return "%d arguments (%s)" % (len(names), ", ".join(names)) if names else "no argument"


def score_names(datasets: Iterable[str], planned: Planned) -> Optional[set[str]]:
    """Return the names that scores and errors of a training may have; None if not all networks are known.

    :param datasets: their names, "train" included
    """
    if len(planned) >= MAX_PLANNED:
        return None
    names: set[str] = set()
    datasets = list(datasets)
    for entry, plan in planned:
        losses = plan.losses
        scored = [loss.name for loss in losses if type(loss.loss).value is not Loss.value]
        tails = ["_" + name for name in scored] if len(scored) > 1 else []
        with_exp = TrainingSettings(entry.config).calculate_exp_loss
        if with_exp:
            tails = ["_%s%s" % (name, exp) for name in scored for exp in ("", ":exp")]
        names.update("%s_score%s" % (data, tail) for data in datasets for tail in tails or [""])
        wrong = [loss.name for loss in losses if type(loss.loss).error is not Loss.error]
        # which of several losses have an error, some know only when they run
        tails = [""] * bool(wrong) + ["_" + name for name in wrong if len(wrong) > 1]
        names.update("%s_error%s" % (data, tail) for data in datasets for tail in tails)
    return names


def check_score(name: str, known: Iterable[str], where: str) -> None:
    """Check the name of a score.

    :raises ConfigError: there will be none of that name
    """
    known = sorted(known)
    if name not in known:
        raise ConfigError("%s: there is no score %r. %s" % (where, name, did_you_mean(name, known, max_listed=20)))

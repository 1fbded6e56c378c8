"""The options of pretraining, from ``pretrain`` and the keys ``pretrain_*`` of a config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from returnn_tf.config import Config
from returnn_tf.config.errors import PretrainError, did_you_mean
from returnn_tf.config.options import from_options, option
from returnn_tf.config.settings.training import TrainingSettings

COPY_MODES = (None, "ifpossible", "subset", "reset")
ALGORITHMS = ("from_output", "from_input", "no_network_modifications")


@dataclass(frozen=True)
class PretrainOptions:
    """Options in ``pretrain``; their meaning is described in the package docstring."""

    construction_algo: Union[str, Callable[..., Any], Sequence[Any]] = option(
        "from_output",
        help="function (idx, net_dict) -> net_dict or None, a list of network dicts, or: from_output, from_input, "
        "no_network_modifications",
    )
    repetitions: Union[None, int, Sequence[Any], dict[Any, Any]] = option(
        None, help="epochs of each step: a number, a list, or a dict by step with 'default' and 'final'"
    )
    copy_param_mode: Optional[str] = option(
        None, choices=COPY_MODES, help="how to copy parameters from the previous step"
    )
    copy_output_layer: Union[None, bool, str] = option(
        None,
        choices=(None, True, False, "ifpossible", "subset", "reset"),
        help="the same for output_layers: True as for the others, False as 'reset'; default: copy_param_mode",
    )
    greedy: bool = option(False, help="train only the new layers")
    output_layers: Sequence[str] = option(
        ("output",), help="layers whose sources from_output and from_input change; see also copy_output_layer"
    )
    input_layers: Sequence[str] = option(
        ("data",), help="data keys and layers below which from_output and from_input do not look"
    )


def options_from_config(config: Config) -> Optional[PretrainOptions]:
    """Return the options, or None without pretraining.

    :raises ConfigError: unknown option or a wrong value
    """
    settings = TrainingSettings(config)
    given, where = settings.pretrain, settings.describe_source("pretrain")
    if not given:
        return None
    if given is True or given == "default":
        given = {}
    if not isinstance(given, dict):
        raise PretrainError(
            "%s: expected \"default\" or a dict such as {'repetitions': 5, 'construction_algo': my_function}, got %r."
            % (where, given)
        )
    values: dict[str, Any] = dict(given)
    separate = {
        "repetitions": settings.pretrain_repetitions,
        "construction_algo": settings.pretrain_construction_algo,
        "copy_output_layer": settings.pretrain_copy_output_layer,
        "greedy": settings.pretrain_greedy,
    }
    for name, value in separate.items():
        if value is not None:
            values.setdefault(name, value)
    for name in ("output_layers", "input_layers"):
        if isinstance(values.get(name), str):
            values[name] = (values[name],)
    options = from_options(PretrainOptions, values, where=where)
    if isinstance(options.construction_algo, str) and options.construction_algo not in ALGORITHMS:
        hint = did_you_mean(options.construction_algo, ALGORITHMS)
        raise PretrainError(
            "%s: construction_algo must be a function (idx, net_dict) -> net_dict or None, a list of network dicts, "
            "or one of: %s; got %r. %s" % (where, ", ".join(ALGORITHMS), options.construction_algo, hint)
        )
    return options


def check_copy_mode(where: str, mode: Any) -> Optional[str]:
    """Return a copy mode of parameters after checking it.

    :raises ConfigError: unknown mode
    """
    if mode not in COPY_MODES:
        raise PretrainError("%s must be 'ifpossible', 'subset', 'reset' or None, not %r." % (where, mode))
    return None if mode is None else str(mode)


def epochs_of_steps(repetitions: Any, own: Sequence[Any], where: str) -> list[int]:
    """Return the number of epochs for each step.

    :param repetitions: the option
    :param own: for each step the number which its network gives (``#repetition``), or None; at least one step
    :raises ConfigError: wrong type, negative, or for a nonexistent step
    """
    steps = len(own)
    if repetitions is None:
        repetitions = 1
    if isinstance(repetitions, dict):
        counts = _from_dict(repetitions, steps, where)
    else:
        given = list(repetitions) if isinstance(repetitions, (list, tuple)) else [repetitions]
        if not given or len(given) > steps:
            raise PretrainError(
                "%s: repetitions has %d entries, but there are %d steps, the network of the config included. Give at "
                "most one for each step." % (where, len(given), steps)
            )
        counts = [_checked(count, where) for count in given + given[-1:] * (steps - len(given))]
    wheres = ["%s: step %d, '#repetition'" % (where, step) for step in range(steps)]
    return [count if n is None else _checked(n, text) for count, n, text in zip(counts, own, wheres)]


def _from_dict(repetitions: dict[Any, Any], steps: int, where: str) -> list[int]:
    counts = [_checked(repetitions.get("default", 1), where)] * steps
    for step, count in repetitions.items():
        if step == "default" or step == "final":
            continue
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < steps:
            raise PretrainError(
                "%s: repetitions has the key %r, but the steps are 0 to %d; the other keys are 'default' and 'final'."
                % (where, step, steps - 1)
            )
        counts[step] = _checked(count, where)
    if "final" in repetitions:
        counts[-1] = _checked(repetitions["final"], where)
    return counts


def _checked(count: Any, where: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise PretrainError("%s: repetitions must be a number of epochs >= 0, not %r." % (where, count))
    return count

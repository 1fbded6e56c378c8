"""Options of datasets: declared once with type, default and help, and checked with "did you mean"."""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any, Callable, Dict, Iterable, Mapping, Tuple

from returnn_tf.config import ConfigError, did_you_mean

# name in declarations -> (what a value has to be, how it is called in an error message)
_KINDS: Dict[str, Tuple[Callable[[Any], bool], str]] = {
    "bool": (lambda v: isinstance(v, bool) or (isinstance(v, numbers.Integral) and v in (0, 1)), "True or False"),
    "int": (lambda v: isinstance(v, numbers.Integral) and not isinstance(v, bool), "an integer"),
    "float": (lambda v: isinstance(v, numbers.Real) and not isinstance(v, bool), "a number"),
    "str": (lambda v: isinstance(v, str), "a string"),
    "list": (lambda v: isinstance(v, (list, tuple)), "a list"),
    "dict": (lambda v: isinstance(v, Mapping), "a dict"),
    "function": (callable, "a function"),
}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option: drives validation, ``--help`` texts and the reference docs.

    :param name: as written in the config
    :param kinds: allowed kinds, joined by "|", out of bool, int, float, str, list, dict, function
    :param default: value if the option is absent or None
    :param help: one line
    :param required: True if there is no default
    """

    name: str
    kinds: str
    default: Any
    help: str
    required: bool = False

    def check(self, owner: str, value: Any) -> Any:
        """The value itself, or a ConfigError which names the owner, the option, the value and what is allowed."""
        if value is None and not self.required:
            return self.default
        kinds = [_KINDS[kind] for kind in self.kinds.split("|")]
        if not any(test(value) for test, _ in kinds):
            raise ConfigError(
                "%s: option %r is %r (%s), but must be %s. (%s)"
                % (owner, self.name, value, type(value).__name__, " or ".join(text for _, text in kinds), self.help)
            )
        return value


def check_options(owner: str, declared: Iterable[Option], given: Mapping[str, Any]) -> Dict[str, Any]:
    """All declared options with the given values or their defaults.

    :param owner: for error messages, e.g. "dataset 'train' (HDFDataset)"
    :raises ConfigError: for an unknown option (with the nearest known one), a wrong type, or a missing required option
    """
    by_name = {option.name: option for option in declared}
    for name in given:
        if name not in by_name:
            raise ConfigError("%s: unknown option %r. %s" % (owner, name, did_you_mean(name, by_name, max_listed=40)))
    for name, option in by_name.items():
        if option.required and given.get(name) is None:
            raise ConfigError("%s: option %r is missing. (%s)" % (owner, name, option.help))
    return {name: option.check(owner, given.get(name)) for name, option in by_name.items()}


def describe_options(declared: Iterable[Option]) -> str:
    """One line per option: name, kinds, default and help."""
    lines = []
    for option in declared:
        default = "required" if option.required else "default %r" % (option.default,)
        lines.append("%s (%s; %s): %s" % (option.name, option.kinds, default, option.help))
    return "\n".join(lines)

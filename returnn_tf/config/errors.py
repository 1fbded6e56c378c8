"""Errors that a user can cause and fix, each with its topic, and the "did you mean" helper which they share.

Within the package an error is raised by the class of its topic, whose page of ``returnn-tf explain`` is then named
below the message. Those that derive from `DataError` have "Data" in their names.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Optional

#: Longer texts are not misspelt names, and comparing them is slow.
_LONGEST_NAME = 100
_SHORTEST_BEGINNING = 6
_MOST_SUGGESTED = 3


class UserError(ValueError):
    """Something that a user caused and can fix.

    :param topic: the page of ``returnn-tf explain`` on it, or several, separated by blanks; by default that of the
        error which led to this one, else that of the class
    """

    #: The page on errors of this class.
    class_topic: ClassVar[str] = ""

    #: Whether the message shows the lines of the config that it is about.
    shows_text: bool = False

    def __init__(self, *args: object, topic: str = "") -> None:
        super().__init__(*args)
        self._topic = topic
        self._network: Optional[Mapping[str, Any]] = None

    @property
    def network(self) -> Optional[Mapping[str, Any]]:
        """Return the network dict that was being planned, also of the error which led to this one; None if none was."""
        cause = self.__cause__.network if isinstance(self.__cause__, UserError) else None
        return cause if self._network is None else self._network

    @network.setter
    def network(self, network: Mapping[str, Any]) -> None:
        self._network = network

    @property
    def topic(self) -> str:
        """Return the pages of ``returnn-tf explain`` on this error, separated by blanks; empty if there is none."""
        cause = self.__cause__.topic if isinstance(self.__cause__, UserError) else ""
        return self._topic or cause or self.class_topic


class ConfigError(UserError):
    """Something the user wrote is wrong: the message names the place and the fix. Ends the program with exit code 2."""


class DataError(UserError):
    """A data file, dataset or batch is wrong: the message names the file or sequence tag. Ends with exit code 1."""


class AxisError(ConfigError):
    """A description of an axis fits none or several."""

    class_topic = "axes"


class BatchError(ConfigError):
    """The options of batches are wrong, or sequences do not fit them."""

    class_topic = "batches"


class CheckpointError(ConfigError):
    """A path or option of checkpoints is wrong, or a checkpoint does not fit the config."""

    class_topic = "checkpoints"


class ClusterError(ConfigError):
    """A job can't be submitted with these options, or processes can't be started together in this way."""

    class_topic = "clusters"


class CodeError(ConfigError):
    """A function, class or import of a config is wrong."""

    class_topic = "code-in-configs"


class CommandError(ConfigError):
    """An argument on the command line is wrong."""

    class_topic = "commands"


class ConfigFileError(ConfigError):
    """A config file is missing or can't be read.

    :param file: its path
    :param line: where it is wrong
    """

    class_topic = "config-file"
    shows_text = True

    def __init__(self, *args: object, topic: str = "", file: Optional[str] = None, line: Optional[int] = None) -> None:
        super().__init__(*args, topic=topic)
        self.file = file
        self.line = line


class CtcError(ConfigError):
    """A CTC loss does not fit the layer or its targets."""

    class_topic = "ctc"


class FileError(ConfigError):
    """The options of a dataset that reads files are wrong, or a package for them is missing."""

    class_topic = "data-files"


class DatasetError(ConfigError):
    """The options of a dataset are wrong."""

    class_topic = "datasets"


class DimError(ConfigError):
    """Dims or shapes do not fit a layer."""

    class_topic = "dims"


class DistributedError(ConfigError):
    """The options of training by several processes are wrong."""

    class_topic = "distributed"


class ExportError(ConfigError):
    """A network can't be exported in this way."""

    class_topic = "export"


class DataKeyError(ConfigError):
    """A data key is declared wrongly, or not at all."""

    class_topic = "extern-data"


class RateError(ConfigError):
    """A setting of the learning rate or of the optimizer is wrong."""

    class_topic = "learning-rate"


class LoopError(ConfigError):
    """A loop is wrong: its end, its states or its step axis."""

    class_topic = "loops"


class NativeError(ConfigError):
    """Native ops can't be used or built as asked."""

    class_topic = "native-ops"


class OptionError(ConfigError):
    """An option is unknown, missing, or has a wrong value."""

    class_topic = "options"


class PretrainError(ConfigError):
    """A network or setting of pretraining is wrong."""

    class_topic = "pretrain"


class RasrError(ConfigError):
    """The options of what RASR does are wrong."""

    class_topic = "rasr"


class SearchError(ConfigError):
    """A beam search is wrong."""

    class_topic = "search"


class SettingError(ConfigError):
    """A setting is wrong."""

    class_topic = "settings"


class SourceError(ConfigError):
    """The sources of a layer, or the names of layers, are wrong."""

    class_topic = "sources"


class SparseError(ConfigError):
    """Labels are given where numbers are needed, or the other way around."""

    class_topic = "sparse-data"


class TargetError(ConfigError):
    """A loss does not fit the layer or its target."""

    class_topic = "targets"


class TextError(ConfigError):
    """The options of a vocabulary or of a dataset of text are wrong."""

    class_topic = "text-data"


class BatchDataError(DataError):
    """A batch, or a sequence for one, is wrong."""

    class_topic = "batches"


class CheckpointDataError(DataError):
    """A checkpoint is missing, damaged, or can't be written."""

    class_topic = "checkpoints"


class ClusterDataError(DataError):
    """Processes that were started together don't find each other."""

    class_topic = "clusters"


class CodeDataError(DataError):
    """A function or class of a config gives wrong data."""

    class_topic = "code-in-configs"


class CommandDataError(DataError):
    """A file that a command reads or writes is wrong."""

    class_topic = "commands"


class CtcDataError(DataError):
    """The scores, the lexicon or the language model of CTC decoding are wrong."""

    class_topic = "ctc"


class FileDataError(DataError):
    """A data file is missing, damaged, or can't be written."""

    class_topic = "data-files"


class DatasetDataError(DataError):
    """The data of a dataset are wrong."""

    class_topic = "datasets"


class DimDataError(DataError):
    """Values do not fit the dims of a layer, or a file of a layer can't be written."""

    class_topic = "dims"


class OptionDataError(DataError):
    """A file that an option names can't be read."""

    class_topic = "options"


class StepError(DataError):
    """An op failed in a step."""

    class_topic = "failed-step"


class DistributedDataError(DataError):
    """A process of a training by several is lost, or has other data."""

    class_topic = "distributed"


class ExportDataError(DataError):
    """An exported model does not compute what the network does, or can't be written."""

    class_topic = "export"


class RateDataError(DataError):
    """The file of learning rates and scores is wrong."""

    class_topic = "learning-rate"


class NativeDataError(DataError):
    """Native ops can't be built or loaded."""

    class_topic = "native-ops"


class RasrDataError(DataError):
    """RASR failed, or a file or answer of it is wrong."""

    class_topic = "rasr"


class SettingDataError(DataError):
    """A file of a run can't be read or written, or a step failed."""

    class_topic = "settings"


class TextDataError(DataError):
    """A file of text, or a text in it, is wrong."""

    class_topic = "text-data"


def error_name(exc: BaseException) -> str:
    """Return the name of the class of an exception; of a class that only states a topic, that of its base."""
    cls = type(exc)
    states_topic = issubclass(cls, UserError) and cls.__module__ == __name__ and cls.class_topic
    return (cls.__bases__[0] if states_topic else cls).__name__


def shown(value: object, *, most: int = 300) -> str:
    """Return the `repr` of a value for an error, shortened in the middle."""
    return shortened(repr(value), most=most)


def shortened(text: str, *, most: int = 2000) -> str:
    """Return a text for an error, without its middle if it is longer than a reader wants."""
    return text if len(text) <= most else "%s ... %s" % (text[: most - 60], text[-50:])


def did_you_mean(name: object, known: Iterable[str], *, max_listed: int = 12, in_order: bool = False) -> str:
    """Return a sentence with the nearest known spelling, else with the list of known names, to append to an error.

    Several spellings that are equally near are all named.

    :param name: what the user wrote
    :param known: the valid names
    :param max_listed: list all known names only if there are at most that many
    :param in_order: list them as given instead of sorted
    """
    known = list(dict.fromkeys(known))
    known = known if in_order else sorted(known)
    nearest = nearest_names(name, known)
    if nearest:
        return "Did you mean %s?" % " or ".join(map(repr, nearest[:_MOST_SUGGESTED]))
    if not known:
        return "None is known."
    if len(known) <= max_listed:
        return "Known: %s." % ", ".join(known)
    return "Known: %s, ... (%d in all)." % (", ".join(known[:max_listed]), len(known))


def nearest_name(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> Optional[str]:
    """Return the known name most similar to ``name``, or None if none is close; of several, the first."""
    return next(iter(nearest_names(name, known, cutoff=cutoff)), None)


def nearest_names(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """Return the known names most similar to ``name`` (case-insensitive), several if they are equally similar.

    Among similar names, the one with the fewest typing mistakes wins, swapped letters counting as one: ``tahn``
    suggests ``tanh``, not ``tan``. The beginning of a single name stands for it.
    """
    lowered: dict[str, str] = {}
    for candidate in known:
        lowered.setdefault(str(candidate).lower(), str(candidate))
    wanted = str(name).lower()
    if len(wanted) > _LONGEST_NAME:
        return []
    longer = [other for other in lowered if other.startswith(wanted)]
    if len(longer) == 1 and len(wanted) >= _SHORTEST_BEGINNING:
        return [lowered[longer[0]]]
    found = difflib.get_close_matches(wanted, list(lowered), n=5, cutoff=cutoff)
    mistakes = {
        other: (edit_distance(wanted, other), sorted(wanted) != sorted(other))
        for other in found
        if _could_be_meant(wanted, other)
    }
    fewest = min(mistakes.values(), default=None)
    return [lowered[other] for other, count in mistakes.items() if count == fewest]


def _could_be_meant(wanted: str, other: str) -> bool:
    """Return False for short words that only share letters, such as ``shape`` and ``state``."""
    return (
        other.startswith(wanted)
        or wanted.startswith(other)
        or edit_distance(wanted, other) <= max(1, (max(len(wanted), len(other)) - 2) // 2)
    )


def edit_distance(a: str, b: str) -> int:
    """Count the insertions, deletions, substitutions and swaps of neighbours which turn ``a`` into ``b``."""
    before: list[int] = []
    previous = list(range(len(b) + 1))
    for i, char in enumerate(a, 1):
        current = [i]
        for j, other in enumerate(b, 1):
            cost = min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (char != other))
            if i > 1 and j > 1 and char == b[j - 2] and a[i - 2] == other:
                cost = min(cost, before[j - 2] + 1)
            current.append(cost)
        before, previous = previous, current
    return previous[-1]

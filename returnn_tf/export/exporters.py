"""The targets of an export: classes with declared options in modules of this folder, and in plug-ins."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config import DataError
from returnn_tf.config.options import option
from returnn_tf.config.registry import OptionClasses
from returnn_tf.export.comparison import difference
from returnn_tf.export.inference import InferenceModel


@dataclasses.dataclass(eq=False, repr=False)
class Exporter(abc.ABC):
    """Writes a network in the format of a target, and runs what it wrote.

    A subclass has a docstring (its first line is shown by ``returnn-tf export --help``), options as fields, and is
    registered by `register_exporter`.
    """

    class_name: ClassVar[str] = ""
    #: For floats, relative to the largest absolute value of the output, or to 1 if that is larger.
    tolerance: ClassVar[float] = 1e-5
    #: Forms of the target that have a column in the table of layers: options on the command line -> the options.
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {"": {}}
    #: Whether parameters are written, so that a checkpoint is needed.
    needs_params: ClassVar[bool] = True

    outputs: list[str] = option([], help="paths of the layers whose values are outputs; default: those of the network")

    def __post_init__(self) -> None:
        #: Further entries of the side file ``model.json``, set by `write`.
        self.facts: dict[str, Any] = {}
        #: Name of an input or of an output -> tensor in what was written, set by `write`: for their entries there.
        self.input_tensors: dict[str, str] = {}
        self.output_tensors: dict[str, str] = {}

    @property
    def searches(self) -> bool:
        """Return whether the network is always exported as it searches."""
        return False

    def model(self, net: Network) -> InferenceModel:
        """Return what is exported of a network.

        :raises ConfigError: an output does not exist, or the target can't express a layer
        """
        return InferenceModel(net, self.outputs)

    @abc.abstractmethod
    def write(self, model: InferenceModel, folder: str) -> None:
        """Write all files, and set `facts`.

        :param folder: exists and is empty
        :raises ConfigError: the target can't express a layer; names the layer, and what to choose instead
        :raises DataError: something that is needed for the target is not installed
        """

    @abc.abstractmethod
    def run(self, folder: str, feed: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Load what was written, with its side file, as another program would, and return the outputs by name.

        :param feed: arrays by input name
        """

    def check(self, model: InferenceModel, folder: str) -> None:
        """Compare what was written with the network, on a sample.

        :raises DataError: they differ; names output, largest difference and place
        """
        for sample in self.samples(model):
            expected, got = model.expected(sample), self.run(folder, sample)
            found = difference(model.outputs, expected, got, self.largest_difference())
            if found:
                raise DataError(
                    "The export to %s does not compute what the network does, so nothing was written: %s."
                    % (self.class_name, found)
                )

    def largest_difference(self) -> float:
        """Return the tolerance for the options, see `tolerance`."""
        return self.tolerance

    def samples(self, model: InferenceModel) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the inputs for which `check` compares what was written with the network."""
        yield model.sample()


EXPORTERS: OptionClasses = OptionClasses("export target", "returnn_tf.export", plugins="returnn_tf.exporters")

#: Class decorator: registers an exporter as ``--to NAME``.
register_exporter = EXPORTERS.register

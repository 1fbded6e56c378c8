"""Export targets: classes with declared options in modules of this folder, and in plug-ins."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.errors import ExportDataError, ExportError
from returnn_tf.config.options import option
from returnn_tf.config.registry import OptionClasses
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.quantized import quantized
from returnn_tf.export.tensor_info import TensorInfo
from returnn_tf.graph.quantization import quantization_of
from returnn_tf.graph.rounded_variable import KINDS

EXPORTERS: OptionClasses = OptionClasses("export target", "returnn_tf.export", plugins="returnn_tf.exporters")
#: The tolerance with rounded factors of products.
ROUNDED_TOLERANCE = 2e-2
#: Class decorator: registers an exporter as ``--to NAME``.
register_exporter = EXPORTERS.register


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

    @property
    def outputs_of_search(self) -> bool:
        """Return whether the outputs are by default the layers of ``search_output_layer``, where the config sets it."""
        return False

    @property
    def fixed_batch(self) -> Optional[int]:
        """Return the number of sequences of a run, or None if it may be any."""
        return None

    @property
    def fixed_frames(self) -> Optional[int]:
        """Return the size of all time axes of the inputs, or None if it may be any."""
        return None

    def config_to_load(self, config: Config) -> Config:
        """Return the config to load the network with, if its parameters are to be stored in another way."""
        return config

    def network(self, net: Network) -> Network:
        """Return the network to export: another one if parameters are to be stored in another way.

        :raises ConfigError: the target can't express how they are stored
        """
        if net.plan.rounded:
            raise ExportError(
                "export to %s: the setting quantize is for graphs with our ops. Remove it, and see the option quantize "
                "in returnn-tf export --help." % self.class_name
            )
        return net

    def model(self, net: Network) -> InferenceModel:
        """Return the model to export of a network.

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
        tolerance = self.largest_difference()
        if model.net.plan.semantics.product_dtype is not None:  # native ops and TensorFlow's round at other places
            tolerance = max(tolerance, ROUNDED_TOLERANCE)
        for sample in self.samples(model):
            expected, got = model.expected(sample), self.run(folder, sample)
            found = difference(model.outputs, expected, got, tolerance)
            if found:
                raise ExportDataError(
                    "The export to %s does not compute what the network does, so nothing was written: %s."
                    % (self.class_name, found)
                )

    def largest_difference(self) -> float:
        """Return the tolerance for the options, see `tolerance`."""
        return self.tolerance

    def samples(self, model: InferenceModel) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the inputs for which `check` compares what was written with the network."""
        yield model.sample()


@dataclasses.dataclass(eq=False, repr=False)
class RoundingExporter(Exporter):
    """A target whose graphs have our ops, also those with rounded parameters."""

    quantize: Optional[str] = option(
        None, help="store matrices in this type, and multiply in it, as by the setting quantize", choices=(None, *KINDS)
    )
    exclude: list[str] = option([], help="with quantize: layers or patterns that stay float32")

    def config_to_load(self, config: Config) -> Config:
        """Return the config without ``quantize``, which the options take over: the network itself keeps its floats."""
        setting = quantization_of(config)
        if setting is None:
            return config
        if self.quantize is None:
            self.quantize, self.exclude = setting.dtype, self.exclude or setting.exclude
        return derived(config, {"quantize": None})

    def network(self, net: Network) -> Network:
        """Return the network, by the option or the setting with rounded parameters; `facts` list these.

        :raises ConfigError: the network was loaded with the setting, or the option has no effect
        """
        if self.quantize is not None and net.plan.semantics.quantization is not None:
            raise ExportError(
                "export to %s: the setting quantize has rounded the parameters already, so the option quantize can't "
                "leave layers out. Remove one of them." % self.class_name
            )
        if self.quantize is not None:
            net = quantized(net, {"dtype": self.quantize, "exclude": self.exclude})
        elif self.exclude:
            raise ExportError("export to %s: exclude has a meaning with quantize alone. Add it." % self.class_name)
        if net.plan.semantics.quantization is not None:
            self.facts[net.plan.semantics.quantization.dtype] = sorted(net.plan.rounded)
        return net

    def largest_difference(self) -> float:
        """Return the tolerance: larger with rounded parameters, as a last bit decides how an activation is rounded."""
        return ROUNDED_TOLERANCE if any(map(self.facts.get, KINDS)) else self.tolerance


def difference(
    infos: Mapping[str, TensorInfo],
    expected: Mapping[str, NDArray[Any]],
    got: Mapping[str, NDArray[Any]],
    tolerance: float,
) -> Optional[str]:
    """Return the first difference as a phrase that names output, amount and place, or None.

    Values are compared within the lengths of their sequences; what is behind has no meaning.

    :param infos: the outputs by name
    :param tolerance: for floats, relative to the largest absolute value of the output (at least 1); labels, lengths
        and shapes must be equal
    """
    for name, info in infos.items():
        if name not in got:
            return "there is no output %r" % name
        found = _difference(info, expected, np.asarray(got[name]), tolerance)
        if found:
            return "the output %r %s" % (name, found)
    return None


def _difference(
    info: TensorInfo, expected: Mapping[str, NDArray[Any]], got: NDArray[Any], tolerance: float
) -> Optional[str]:
    wanted = expected[info.name]
    if got.shape != wanted.shape:
        return "has the shape %s, but %s is right" % (list(got.shape), list(wanted.shape))
    if got.dtype != wanted.dtype:
        return "has the type %s, but %s is right" % (got.dtype, wanted.dtype)
    valid = valid_frames(info, expected)
    if wanted.dtype.kind not in "fc":
        bad = (got != wanted) & valid
        amount = bad
    else:
        valid = valid & ~((got == wanted) | (np.isnan(got) & np.isnan(wanted)))
        amount = np.where(valid, np.abs(np.where(valid, got, 0) - np.where(valid, wanted, 0)), 0)
        finite = np.abs(wanted[np.isfinite(wanted)])
        bad = valid & ~(amount <= tolerance * max(1.0, float(finite.max(initial=0.0))))
    if not bad.any():
        return None
    place = np.unravel_index(int(np.argmax(np.where(bad, np.nan_to_num(amount, nan=np.inf), 0))), bad.shape)
    return "is %s at %s, but %s is right" % (got[place], [int(index) for index in place], wanted[place])


def valid_frames(info: TensorInfo, values: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return a mask that broadcasts against an output: False behind the end of sequences.

    :param values: outputs by name, with the lengths
    """
    value = values[info.name]
    mask = np.ones(value.shape, bool)
    for axis, name in info.lengths.items():
        lens = values[name]
        if info.axes[:1] != ("B",) or lens.ndim not in range(1, axis + 1) or len(lens) != len(value):
            continue
        frames = np.arange(value.shape[axis]).reshape([-1 if i == axis else 1 for i in range(value.ndim)])
        mask &= frames < lens.reshape([*lens.shape, *[1] * (value.ndim - lens.ndim)])
    return mask

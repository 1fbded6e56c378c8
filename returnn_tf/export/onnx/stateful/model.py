"""`StatefulModel`: the steps of a loop of a network, to be exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returnn_tf.compiler.network import Network
from returnn_tf.config.errors import ExportError
from returnn_tf.export.data_facts import LabelFiles
from returnn_tf.export.inference import InferenceModel
from returnn_tf.export.onnx.names import OUTPUT, file_names
from returnn_tf.export.onnx.stateful.check import check_steps
from returnn_tf.export.onnx.stateful.emission import StepFunctions
from returnn_tf.export.onnx.stateful.models import (
    ENCODER,
    ENCODER_SIZES,
    ENCODER_STATES,
    INITIALIZER,
    SCORER,
    SCORES,
    TOKEN,
    UPDATER,
    StatefulModels,
)
from returnn_tf.export.steps.loops import plan_for_steps


def steps_network(net: Network, layer: str, where: str) -> Network:
    """Return a network that computes single steps of a loop, with the parameters of another one.

    :param layer: path of the loop
    :param where: how errors begin
    :raises ConfigError: the loop can't be computed step by step
    """
    steps = Network(plan_for_steps(net.config, layer), net.config)
    values = net.get_param_values()
    missing = [name for name in steps.stored_params if name not in values]
    if missing:
        raise ExportError(
            "%s: the network lacks the parameter %r of the loop. Plan it with search=True." % (where, missing[0])
        )
    steps.set_param_values({name: values[name] for name in steps.stored_params})
    return steps


class StatefulModel(InferenceModel):
    """The steps of a loop, with the parameters of a network; its inputs are those of the encoder.

    :param net: has the parameters
    :param layer: path of the loop
    :raises ConfigError: the loop can't be computed step by step
    """

    def __init__(self, net: Network, layer: str) -> None:
        self._where = "export to onnx: stateful %r" % layer
        steps = steps_network(net, layer, self._where)
        self._layer, self._params = layer, steps.stored_params
        self.functions = StepFunctions(steps.plan, steps.config, self._params, layer, where=self._where)
        super().__init__(steps, nodes=self.functions.packing.nodes)
        self.facts: dict[str, Any] = {}
        self._names: dict[str, str] = {}

    def write(self, folder: str, opset: int, *, rasr: bool, names: Mapping[str, str]) -> None:
        """Write the models, and set `facts`.

        :param rasr: RASR's names for the encoder, and costs for scores
        :param names: further names for inputs of the encoder
        """
        self._names = file_names(self, names, rasr=rasr)
        self._names[ENCODER_STATES] = OUTPUT if rasr else ENCODER_STATES
        self._names[ENCODER_SIZES] = OUTPUT + "-size" if rasr else ENCODER_SIZES
        models = StatefulModels(self, self.functions, opset, costs=rasr)
        models.write(folder, self._names)
        files = {"state_initializer": INITIALIZER, "state_updater": UPDATER, "scorer": SCORER}
        self.facts = {
            "stateful": {
                "layer": self._layer,
                "files": {**({"encoder": ENCODER} if self.nodes else {}), **files},
                "encoder": {part: self._names[part] for part in (ENCODER_STATES, ENCODER_SIZES)} if self.nodes else {},
                "features": self.functions.packing.width,
                "token": TOKEN,
                "scores": {"tensor": SCORES, "log": not rasr, "sign": -1 if rasr else 1},
                "labels": self.functions.labels,
                **LabelFiles(self.net.plan, self.net.config, folder).facts(self.functions.choice.output.sparse_dim),
                "target": self.functions.choice.layer.target,
                "states": {
                    name: {"shape": spec.shape.as_list(), "dtype": spec.dtype.name}
                    for name, spec in models.states.items()
                },
            },
        }  # fmt: skip

    @property
    def input_tensors(self) -> dict[str, str]:
        """Return the inputs of the encoder: name -> tensor."""
        return {name: self._names[name] for name in self.input_infos}

    def check(self, folder: str, *, rasr: bool, most: float) -> None:
        """Compare what was written with the steps of the network.

        :raises DataError: they differ
        """
        whole = StepFunctions(self.net.plan, self.net.config, self._params, self._layer, where=self._where, split=False)
        check_steps(self, whole, folder, self._names, sign=-1.0 if rasr else 1.0, most=most)

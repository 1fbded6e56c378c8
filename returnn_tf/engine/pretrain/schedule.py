"""Schedule of networks: which one is trained in which epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from returnn_tf.compiler.plan_config import no_network
from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.epoch_value import at_epoch, copied, same_value
from returnn_tf.config.errors import ConfigError, OptionError, PretrainError, nearest_name
from returnn_tf.config.option_types import shown_with_kind
from returnn_tf.config.settings import check_settings, misspelt
from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.config.user_code import call_of_config
from returnn_tf.engine.learning_rate.control import LearningRateControl, given_rates
from returnn_tf.engine.pretrain.options import PretrainOptions, check_copy_mode, options_from_config
from returnn_tf.engine.pretrain.steps import PretrainStep, make_steps
from returnn_tf.logging.log import log

#: Keys of a network dict that are no layers.
SPECIAL_KEYS = ("#config", "#copy_param_mode", "#finish_all_data", "#info", "#repetition", "#trainable")


@dataclass(frozen=True)
class EpochNetwork:
    """The network of an epoch.

    :param name: for messages, e.g. "pretrain step 2"
    :param layers: the dict without the keys that start with "#"
    :param settings: of ``#config``
    :param config: the settings of this epoch, including the network dict
    :param base: the config of the run
    :param copy_mode: how the parameters are carried over from another network
    :param copy_output_layer: the same for the output layers; None: as for all layers
    :param output_layers: of pretraining
    :param pretrain: whether this is an epoch of pretraining
    :param trainable: whether the epoch trains; otherwise it only goes through the training data (``#trainable``)
    """

    name: str
    layers: dict[str, Any]
    settings: dict[str, Any]
    config: Config
    base: Config
    copy_mode: Optional[str] = None
    copy_output_layer: Any = None
    output_layers: Sequence[str] = ()
    pretrain: bool = False
    trainable: bool = True
    info: Any = field(default=None, compare=False)

    def same_network(self, other: EpochNetwork) -> bool:
        """Return whether both have the same layers with the same options."""
        return same_value(self.layers, other.layers)

    def same_settings(self, other: EpochNetwork, *, but: Any = ()) -> bool:
        """Return whether both change the same settings to the same values, ignoring some keys."""
        mine, others = ({k: v for k, v in e.settings.items() if k not in but} for e in (self, other))
        return same_value(mine, others)

    def same_training(self, other: EpochNetwork) -> bool:
        """Return whether both train the same network with the same settings."""
        return self.trainable == other.trainable and self.same_network(other) and self.same_settings(other)

    def mode_of(self, layer_path: str) -> Optional[str]:
        """Return the copy mode for the parameters of a layer; "reset" if they are not carried over."""
        if self.copy_mode == "reset" or self.copy_output_layer is None:
            return self.copy_mode
        if layer_path.split("/")[0] not in self.output_layers or self.copy_output_layer is True:
            return self.copy_mode
        return self.copy_output_layer or "reset"


class NetworkSchedule:
    """The networks of all epochs; without pretraining or ``get_network``, always the one of the config.

    :raises ConfigError: wrong options, or a construction function did not return a network
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        # Without the changes that the `#config` of the current epoch makes in the config itself.
        self._unchanged = derived(config, {})
        options = options_from_config(config)
        self._options = options or PretrainOptions()
        self._get_network = NetworkSettings(config).get_network
        self._steps: list[PretrainStep] = []
        if self._get_network is not None:
            self._check_get_network(options)
        elif options is not None:
            where = TrainingSettings(config).describe_source("pretrain")
            self._steps = make_steps(self._network_of_config(), self._options, where)
            if not self.pretrain_epochs:
                log.warn("pretrain has no effect: all of its steps have 0 epochs.")
        self._by_epoch: dict[int, EpochNetwork] = {}
        self._warned: list[str] = []

    @property
    def pretrain_epochs(self) -> int:
        """Return the last epoch of pretraining; 0 without."""
        return sum(step.epochs for step in self._steps)

    def at(self, epoch: int) -> EpochNetwork:
        """Return the network of an epoch, from 1."""
        if epoch not in self._by_epoch:
            self._by_epoch[epoch] = self._make(epoch)
        return self._by_epoch[epoch]

    def renewed(self, epoch: int) -> EpochNetwork:
        """Return the network of an epoch that begins now; ``get_network`` is asked again.

        It may depend on files which earlier epochs have written, e.g. alignments.
        """
        if self._get_network is not None:
            before = self._by_epoch.pop(epoch, None)
            now = self.at(epoch)
            if before is not None and not now.same_training(before):
                log.write(3, "%s returns another network, or other settings, than before the training." % now.name)
        return self.at(epoch)

    def distinct(self, first: int, last: int) -> list[EpochNetwork]:
        """Return the networks of these epochs, without repetitions in successive epochs."""
        found: list[EpochNetwork] = []
        for epoch in range(first, last + 1):
            entry = self.at(epoch)
            if not found or not entry.same_training(found[-1]):
                found.append(entry)
        return found

    def _make(self, epoch: int) -> EpochNetwork:
        step = self._step_of(epoch)
        if step is not None:
            return self._entry("pretrain step %d" % step.index, at_epoch(step.network, epoch), pretrain=True)
        if self._get_network is not None:
            where = NetworkSettings(self._config).describe_source("get_network")
            network = call_of_config(where, self._get_network, epoch=epoch)
            name = "get_network(epoch=%d)" % epoch
            if not isinstance(network, dict):
                raise PretrainError("%s must return a network dict, not %s." % (name, shown_with_kind(network)))
            return self._entry(name, at_epoch(network, epoch))
        return self._entry("the network of the config", at_epoch(self._network_of_config(), epoch))

    def _step_of(self, epoch: int) -> Optional[PretrainStep]:
        done = 0
        for step in self._steps:
            done += step.epochs
            if epoch <= done:
                return step
        return None

    def _entry(self, name: str, network: Mapping[str, Any], pretrain: bool = False) -> EpochNetwork:
        self._warn_of_misspelt(name, network)
        self._log_without_effect(name, network, pretrain)
        settings = network.get("#config") or {}
        if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
            raise PretrainError("%s: '#config' must be a dict of settings by name, not %r." % (name, settings))
        settings = copied(settings)
        self._warn_of_unknown(name, settings)
        layers = {key: layer for key, layer in network.items() if not str(key).startswith("#")}
        mode = self._options.copy_param_mode
        if "#copy_param_mode" in network:
            mode = check_copy_mode("%s: '#copy_param_mode'" % name, network["#copy_param_mode"])
        output = self._options.copy_output_layer
        if output is None and self._steps:
            output = mode or "ifpossible"  # the sources of the output change from step to step
        config = derived(self._unchanged, settings, hidden={"network": layers, "get_network": None})
        try:
            check_settings(config, settings)
        except ConfigError as exc:
            raise PretrainError("%s: '#config': %s" % (name, exc)) from None
        return EpochNetwork(
            name,
            layers,
            settings,
            config,
            self._config,
            mode,
            output,
            self._options.output_layers,
            pretrain,
            self._flag(name, network, "#trainable", True),
            network.get("#info"),
        )

    def _flag(self, name: str, network: Mapping[str, Any], key: str, default: bool) -> bool:
        value = network.get(key, default)
        if not isinstance(value, bool):
            raise PretrainError("%s: %r must be True or False, not %r." % (name, key, value))
        return value

    def _log_without_effect(self, name: str, network: Mapping[str, Any], pretrain: bool) -> None:
        """Log the special keys which change nothing in this network, with the reason, once."""
        reasons = {}
        if not self._flag(name, network, "#finish_all_data", True):
            reasons["#finish_all_data"] = "every epoch goes through all data, also with several processes"
        if "#repetition" in network and not pretrain and not self._steps:
            reasons["#repetition"] = "it counts the epochs of a step of pretraining"
        for key, reason in reasons.items():
            if key not in self._warned:
                self._warned.append(key)
                log.write(3, "%s: %r has no effect: %s" % (name, key, reason))

    def _warn_of_unknown(self, name: str, settings: dict[str, Any]) -> None:
        for key in settings:
            near = None if key in self._config else misspelt(key)
            if near is not None and key not in self._warned:
                self._warned.append(key)
                log.warn("%s: %r in '#config' has no meaning. Did you mean %r?" % (name, key, near))

    def _warn_of_misspelt(self, name: str, network: Mapping[str, Any]) -> None:
        for key in network:
            near = nearest_name(key, SPECIAL_KEYS, cutoff=0.8) if str(key).startswith("#") else None
            if near is not None and near != key and key not in self._warned:
                self._warned.append(key)
                log.warn("%s: %r in the network has no meaning. Did you mean %r?" % (name, key, near))

    def _network_of_config(self) -> dict[str, Any]:
        network = NetworkSettings(self._config).network
        if network is None:
            raise no_network(self._config)
        if not isinstance(network, dict):
            where = NetworkSettings(self._config).describe_source("network")
            raise OptionError(
                "%s must be a dict {layer name: {'class': ..., ...}}, got %s." % (where, shown_with_kind(network)),
            )
        return network

    def _check_get_network(self, options: Optional[PretrainOptions]) -> None:
        where = NetworkSettings(self._config).describe_source("get_network")
        if options is not None:
            raise PretrainError("%s: pretrain and get_network exclude each other; remove one of them." % where)


def rate_of_epoch(control: LearningRateControl, entry: EpochNetwork, epoch: int) -> float:
    """Return the rate of an epoch, and store it in the control; a rate that it already has is kept."""
    if epoch not in control.epochs:
        rate = _decided(control, entry, epoch)
        if rate is not None:
            control.set_rate(epoch, rate)
    return control.learning_rate(epoch)


def _decided(control: LearningRateControl, entry: EpochNetwork, epoch: int) -> Optional[float]:
    settings = LearningRateSettings(entry.config)
    if "learning_rates" in entry.settings:
        rates = given_rates(entry.config)
        if epoch in rates:
            return rates[epoch]
    if "learning_rate" in entry.settings:
        return settings.learning_rate
    if not entry.pretrain or epoch in control.given_rates or settings.use_learning_rate_control_always:
        return None
    rate = settings.pretrain_learning_rate
    return settings.learning_rate if rate is None else rate

"""Planning of the network of a config. No TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

from returnn_tf.compiler.plan_network import plan_network
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config import Config
from returnn_tf.config.epoch_value import network_of
from returnn_tf.config.errors import ConfigError, ConfigFileError, DimError
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.config.user_code import using_config
from returnn_tf.graph.fine_tuning import fine_tuning_of
from returnn_tf.graph.quantization import quantization_of
from returnn_tf.graph.semantics import Semantics
from returnn_tf.tensor import Dim, empty_data_keys, extern_data_options, parse_extern_data


def plan_from_config(
    config: Config,
    *,
    train: bool = False,
    search: bool = False,
    evaluate: bool = False,
    whole_loops: Sequence[str] = (),
) -> Plan:
    """Plan the network of a config; needs no TensorFlow, and creates no variables.

    :param train: whether dropout etc. are active; losses in loops exist, and `fine_tune` has its effect
    :param search: whether to search instead of following the targets
    :param evaluate: whether losses in loops exist without ``train``, for scores of other data
    :param whole_loops: paths of `rec` layers of which no layer is moved out of the loop
    :raises ConfigError: with layer path and fix
    """
    network = network_of(config)
    if network is None:
        raise no_network(config)
    settings = NetworkSettings(config)
    declared = {
        "extern_data": settings.extern_data,
        "num_inputs": settings.num_inputs,
        "num_outputs": settings.num_outputs,
    }
    searched = TrainingSettings(config).search_train_network_layers or ()
    if settings.mixed_precision and settings.float_dtype != "float32":
        raise DimError(
            "mixed_precision = %r needs parameters of float32, but float_dtype is %r. Remove one of them."
            % (settings.mixed_precision, settings.float_dtype)
        )
    semantics = Semantics(
        settings.float_dtype,
        settings.mixed_precision or None,
        settings.behavior_version,
        quantization_of(config),
    )
    with using_config(config):
        sized_dims: dict[Dim, Dim] = {}
        extern_data = parse_extern_data(extern_data_options(declared), settings.float_dtype, sized_dims)
        try:
            plan = plan_network(
                network,
                extern_data,
                sized_dims=sized_dims,
                semantics=semantics,
                train=train,
                search=search,
                evaluate=evaluate,
                whole_loops=whole_loops,
                searched_layers=[searched] if isinstance(searched, str) else searched,
                default_target=settings.target,
                empty_data_keys=empty_data_keys(declared),
                fine_tuning=fine_tuning_of(config) if train else None,
            )
        except ConfigError as exc:
            exc.network = network
            raise
        assert plan.rounded is not None  # raises an error for a wrong setting
        return plan


#: What configs define whose model is code of another backend.
_CODE_OF_MODELS = ("get_model", "train_step", "forward_step")


def no_network(config: Config) -> ConfigError:
    """Return the error for a config without ``network`` and ``get_network``."""
    example = "network = {'output': {'class': 'softmax', ...}}"
    code = next((name for name in _CODE_OF_MODELS if callable(config.raw(name) if name in config else None)), None)
    if code is None:
        return ConfigFileError("The config has no network. Add e.g. %s." % example)
    return ConfigFileError(
        "%s is code for another backend: a model of PyTorch or returnn.frontend, also if backend is 'tensorflow'. Only "
        "networks that are dicts are run; write the model as one, e.g. %s." % (config.describe_source(code), example)
    )

"""Settings: the network, and the data keys that it reads."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from returnn_tf.config.behavior_versions import NEWEST_VERSION
from returnn_tf.config.options import at_least
from returnn_tf.config.settings.catalog import register_settings
from returnn_tf.config.settings.declaration import SettingGroup, setting


def _is_version(value: int) -> Optional[str]:
    return None if 0 <= value <= NEWEST_VERSION else "must be an int from 0 to %d" % NEWEST_VERSION


@register_settings
class NetworkSettings(SettingGroup):
    """The network."""

    topic_order = 20

    behavior_version: int = setting(0, help="selects between old and new semantics", check=_is_version)
    network: Any = setting(None, help="the network dictionary: layer name -> options")
    get_network: Optional[Callable[..., Any]] = setting(
        None, help="function(epoch) -> network dictionary, instead of network"
    )
    extern_data: Any = setting(None, help="data key -> its dims and dtype")
    num_inputs: Any = setting(None, help="dim of the input", old='extern_data = {"data": {"dim": ...}, ...}')
    num_outputs: Any = setting(
        None,
        help="data key -> (dim, number of axes)",
        old='extern_data = {"classes": {"dim": ..., "sparse": True}, ...}',
    )
    float_dtype: str = setting(
        "float32", help="type of the data, parameters and computation", choices=("float32", "float64")
    )
    mixed_precision: Optional[str] = setting(
        None,
        help="type of matrix products, convolutions and their activations; parameters, losses, softmax, norms and "
        "reductions stay float32",
        choices=(None, "bfloat16", "float16"),
    )
    tensor_float_32: Optional[bool] = setting(
        None,
        help="whether products and convolutions of float32 on a GPU may round their operands to TF32. None: as "
        "TensorFlow has it, which allows it",
    )
    quantize: Union[None, str, dict[str, Any]] = setting(
        None,
        help="'int8', 'bfloat16', or {'dtype': 'int8', 'exclude': [layers or patterns]}: matrices are stored in this "
        "type, and what is multiplied with them is rounded to it; not in training",
    )
    skip_padding: Optional[bool] = setting(
        None,
        help="whether layers that work frame by frame get the frames of all sequences in one row in training, without "
        "padding. None: on CPUs, where that pays; True: all that can, at least one; False: none",
    )
    jit_compile: bool = setting(
        False, help="whether XLA compiles the steps of training and evaluation, once per shape of a batch"
    )
    target: str = setting("classes", help="default data key of targets")
    beam_size: Optional[int] = setting(
        None,
        help="beam size of all choices; command line only: in configs the name is free for other use",
        check=at_least(1),
        on_command_line=True,
    )
    optimize_move_layers_out: bool = setting(
        True,
        help="whether layers leave loops where possible",
        unsupported="set 'optimize_move_layers_out': False in the rec layers that need it",
    )
    debug_add_check_numerics_ops: bool = setting(
        False, help="check the output of each layer and each gradient for NaN and Inf"
    )
    debug_add_check_numerics_on_output: bool = setting(False, help="check the output layers for NaN and Inf")
    debug_print_layer_output: bool = setting(
        False, help="print shape and values of the output of each layer to stderr whenever it is computed"
    )
    debug_print_layer_output_template: bool = setting(
        False, help="log the dims of the output of each layer when a network is built"
    )

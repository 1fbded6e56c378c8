"""Checkpoints of a training with adapters: they have the sums, so that whatever reads them has a plain network.

What the training goes on with is among what only an exact resume needs: ``adapter/<parameter>``, of the two matrices
of an adapter and of the parameter that their product is added to, and ``adapter/<parameter>/scale``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from returnn_tf.compiler.network import Network
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.config.errors import SettingError
from returnn_tf.graph.fine_tuning import SETTING
from returnn_tf.graph.param_spec import ADAPTER_PARTS
from returnn_tf.logging.log import log
from returnn_tf.util.lazy_tf import tf

_PREFIX, _SCALE = "adapter/", "/scale"

Values = dict[str, Any]


def stored(plan: Plan, params: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[Values, Values]:
    """Return the parameters and the further state of a checkpoint.

    :param plan: of the network that is trained
    :param params: its parameters by name
    :param state: of the trainer
    """
    plain, state = dict(params), dict(state)
    for name, spec in plan.adapted.items():
        assert spec.adapter is not None
        plain[name] = spec.adapter.added_to(params[name], params)
        state[_PREFIX + name], state[_PREFIX + name + _SCALE] = params[name], tf.constant(spec.adapter.scale, "float64")
        for part in (spec.adapter.first.name, spec.adapter.second.name):
            state[_PREFIX + part] = plain.pop(part)
    return plain, state


def training_values(
    net: Network, params: Mapping[str, Any], state: Mapping[str, Any], path: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return parameters and state with which a training goes on, given those of a checkpoint.

    What has no adapter in the checkpoint gets one that adds nothing yet.

    :param path: of the checkpoint, for messages
    :raises ConfigError: the adapters are multiplied by another factor than in the training that wrote it
    """
    values, fresh = unfolded(params, state), []
    for name, spec in net.plan.adapted.items():
        assert spec.adapter is not None
        scale = state.get(_PREFIX + name + _SCALE)
        if scale is None:
            fresh.append(name)
            for part in (spec.adapter.first, spec.adapter.second):
                values[part.name] = net.initial_value(part)
        elif float(scale) != spec.adapter.scale:
            raise SettingError(
                "%s['lora']: alpha / rank is %g, but the training that wrote %s has %g. Resume with the same alpha, or "
                "start another training: 'from': %r, with another model."
                % (SETTING, spec.adapter.scale, path, float(scale), path)
            )
    if fresh:
        listed = ", ".join(fresh[:5]) + ", ..." * (len(fresh) > 5)
        log.write(2, "%s has no adapters of %s; they start from scratch." % (path, listed))
    return values, state


def unfolded(params: Mapping[str, Any], state: Mapping[str, Any]) -> Values:
    """Return the parameters of a checkpoint as the training has them, adapters apart."""
    kept = {name[len(_PREFIX) :]: value for name, value in state.items() if name.startswith(_PREFIX)}
    return {**params, **{name: value for name, value in kept.items() if not name.endswith(_SCALE)}}


def folded(params: Mapping[str, Any], state: Mapping[str, Any]) -> Values:
    """Return the parameters with what adapters add to them, given those of `unfolded`.

    :param state: of the checkpoint
    """
    result = dict(params)
    for key in state:
        if key.startswith(_PREFIX) and key.endswith(_SCALE):
            name = key[len(_PREFIX) : -len(_SCALE)]
            first, second = (result.pop("%s/%s" % (name, part)) for part in ADAPTER_PARTS)
            base = result[name]
            result[name] = base + (float(state[key]) * (first @ second).reshape(base.shape)).astype(base.dtype)
    return result

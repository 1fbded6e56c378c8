"""Keys and values that `self_attention` keeps: from batch to batch by the option ``initial_state``, else in streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.graph.carried_state import KeptSpec
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.ops.frames.shape import expand_at
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

#: Values of the option -> whether the history is empty at the start of a pass over a dataset; None: always.
INITIAL_STATES = {"zeros": None, "keep_over_epoch": True, "keep_over_epoch_no_init": False, "placeholder": False}
_MASK = "mask"


class KeptHistory:
    """The keys and values of all batches before, and which of them are frames, not padding.

    :param specs: of keys and values by name, [batch, ..., history, head, size], and of the mask, [batch, history]
    :param last_only: whether only the frames of the last batch are kept
    """

    def __init__(self, specs: Mapping[str, KeptSpec], *, last_only: bool = False) -> None:
        self._specs = dict(specs)
        self._last_only = last_only

    def before(self, ctx: EmitContext, name: str) -> Any:
        """Return the keys or values of the batches before."""
        return ctx.kept_of(self._specs[name])

    def extended(self, ctx: EmitContext, name: str, x: Any) -> Any:
        """Put the history in front of the keys or values of this batch, and keep them; [batch, ..., time, head, size].

        :param name: of the part
        """
        result = tf.concat([self.before(ctx, name), x], axis=-3)
        ctx.keep_of(self._specs[name], x if self._last_only else result)
        return result

    def mask(self, ctx: EmitContext, frames: Any, current: Any, rank: int) -> Any:
        """Return the mask of valid keys, bool [batch, 1..., 1, queries, keys], and keep that of the frames.

        :param frames: bool [batch, time]
        :param current: the mask of this batch that broadcasts to [batch, ..., head, queries, time], or None
        :param rank: of the result
        """
        before = self.before(ctx, _MASK)
        self._keep_mask(ctx, before, frames)
        times = tf.shape(frames)[1]
        shape = [tf.shape(frames)[0], *[1] * (rank - 3), times]
        now = tf.constant(True) if current is None else current
        return tf.concat(
            [
                tf.broadcast_to(expand_at(before, range(1, rank - 1)), tf.stack([*shape, tf.shape(before)[1]])),
                tf.broadcast_to(now, tf.stack([*shape, times])),
            ],
            axis=-1,
        )

    def mask_of_step(self, ctx: EmitContext, keys: Any) -> Any:
        """Return the mask of valid keys in a step of a loop, bool [batch, keys]: all of the loop so far are."""
        before = self.before(ctx, _MASK)
        size = tf.shape(before)
        return tf.concat([before, tf.ones(tf.stack([size[0], keys - size[1]]), tf.bool)], axis=1)

    def keep(self, ctx: EmitContext, parts: dict[str, Any], lens: Any) -> None:
        """Keep the history after the last step of a loop.

        :param parts: name -> [batch, ..., history, head, size]
        :param lens: number of steps of each sequence, int32 [batch] or scalar
        """
        before = self.before(ctx, _MASK)
        old = tf.shape(before)[1]
        steps: Any = 0
        for name, value in parts.items():
            steps = tf.shape(value)[-3] - old
            ctx.keep_of(self._specs[name], value[..., old:, :, :] if self._last_only else value)
        frames = tf.broadcast_to(tf.sequence_mask(lens, steps), tf.stack([tf.shape(before)[0], steps]))
        self._keep_mask(ctx, before, frames)

    def _keep_mask(self, ctx: EmitContext, before: Any, frames: Any) -> None:
        ctx.keep_of(self._specs[_MASK], frames if self._last_only else tf.concat([before, frames], axis=1))


def kept_history(ctx: PlanContext, layer: Any, parts: dict[str, Data], *, in_step: bool) -> Optional[KeptHistory]:
    """Plan the history that the option ``initial_state`` of a `self_attention` asks for, or return None.

    :param parts: see `KeptHistory`
    :param in_step: whether it runs step by step in a loop
    :raises ConfigError: another value, or it is used with key_shift
    """
    given = layer.initial_state
    if given is None or given == "zeros":
        if layer.restrict_state_to_last_seq:
            raise ctx.error("restrict_state_to_last_seq needs a state: set initial_state to 'keep_over_epoch'.")
        return None
    if given not in INITIAL_STATES:
        raise ctx.error(
            "initial_state must be None, 'zeros', 'keep_over_epoch', 'keep_over_epoch_no_init' or 'placeholder' here, "
            "not %r." % (given,)
        )
    if layer.key_shift is not None:
        raise ctx.error("key_shift has no vectors for the frames of earlier batches. Remove it or initial_state.")
    resets, fed = bool(INITIAL_STATES[given]), given == "placeholder"
    for name, data in parts.items():
        if data.batch_axis != 0:
            raise ctx.error("initial_state needs a batch axis in the source, to keep a history for each sequence.")
        variable = "%s_%s_left" % ("initial_state_placeholder" if fed else "keep_state", name[0])
        ctx.keep(name, variable, data, resets=resets, is_param=in_step and not fed, fed=fed)
    ctx.keep(_MASK, "keep_state_mask", _mask_of(parts), resets=resets, is_param=False, fed=fed)
    return KeptHistory(layer.node.kept, last_only=layer.restrict_state_to_last_seq)


def streamed_history(layer: Any, parts: dict[str, Data]) -> KeptHistory:
    """Return the history of a layer without ``initial_state`` in graphs that compute sequences block by block.

    :param parts: see `kept_history`
    """
    path = layer.node.path
    specs = {
        name: KeptSpec("%s/%s" % (path, layer.state_name(name)), data, resets=False, is_param=False, layer_path=path)
        for name, data in [*parts.items(), (_MASK, _mask_of(parts))]
    }
    return KeptHistory(specs)


def _mask_of(parts: Mapping[str, Data]) -> Data:
    """Return the template of the mask, [batch, history]."""
    dims = next(iter(parts.values())).dims
    return Data((dims[0], dims[-3]), "bool")

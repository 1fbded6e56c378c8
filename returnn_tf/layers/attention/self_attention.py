"""`self_attention`: multi-head attention of every frame to all frames of its sequence."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Optional, Union

from returnn_tf.config.errors import DimError
from returnn_tf.config.options import OptionalLayerRef, dropout_rate, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Init
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.attention.history import count_step, extended, history_mask, picked_before, shift_of_picked
from returnn_tf.layers.attention.kept_history import KeptHistory, kept_history, streamed_history
from returnn_tf.layers.attention.relative_positional_encoding import TABLE, RelativePositionalEncodingLayer
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.loop_axis import check_lengths_of, frames_of, with_frames
from returnn_tf.loops.hypotheses import InPlace, empty_in_place
from returnn_tf.loops.packed import matrix
from returnn_tf.native.attention import native_attention
from returnn_tf.native.decoding.beam_attention import native_beam_attention
from returnn_tf.native.dispatch import form
from returnn_tf.ops.dense.attention import empty_history, growing, left_only_mask
from returnn_tf.ops.dense.attention_forms import rounds_factors, usable_attention_ops
from returnn_tf.ops.dense.attention_in_place import in_place_ops
from returnn_tf.ops.frames.positions import by_distance
from returnn_tf.ops.frames.shape import expand_at, transpose
from returnn_tf.ops.mixed_precision import full, reduced
from returnn_tf.ops.product import product
from returnn_tf.ops.softmax import masked_softmax
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.parts import Part, Parts, equal_parts
from returnn_tf.util.known_shapes import reshape
from returnn_tf.util.lazy_tf import tf

_PARTS = ("keys", "values")


@dataclasses.dataclass(frozen=True, eq=False)
class SelfAttentionPlan(LayerPlan):
    """The plan of `SelfAttentionLayer`.

    :param key: size of the keys of a head
    :param value: size of the values of a head
    :param frames: the input, with the axis of the steps if the attention is over that
    :param single_step: whether it computes one step of a loop
    :param in_loop: whether the frames are the steps of a loop
    :param perm: order of the axes of ``frames``: batch, others, the frames, features
    :param rows: the axes in this order, without the features
    :param heads: the axis of the heads
    :param kept: the frames of earlier batches, by ``initial_state``
    :param streamed: the frames of earlier blocks, where sequences come block by block
    """

    key: int
    value: int
    frames: Data
    single_step: bool
    in_loop: bool
    perm: Sequence[int]
    rows: Data
    heads: Dim
    kept: Optional[KeptHistory]
    streamed: Optional[KeptHistory]


def _in_blocks(ops: Any, layer: SelfAttentionLayer, ctx: EmitContext, qkv: Any, table: Optional[Any]) -> Any:
    """Emit the native op, which computes the same as `SelfAttentionLayer._attend`."""
    plan, lens = layer.plan, None
    dim, causal = plan.rows.dims[-1], layer.attention_left_only or plan.in_loop
    if dim.is_dynamic() and not causal:
        lens = ctx.lens_by_seq(dim, plan.rows.dims[0])
    return native_attention(
        ops, [qkv], plan.key, scale=plan.key**-0.5, lengths=lens, causal=causal, table=table,
        dropout=layer.attention_dropout if ctx.train else 0.0, seed=ctx.seed("attention"),
        rounded=rounds_factors(plan.key, ctx.product_dtype),
    )  # fmt: skip


def _reshaped(ctx: EmitContext, x: Any, sizes: Sequence[Union[Dim, int]]) -> Any:
    shape = ctx.shape_vector(sizes)
    return reshape(x, shape) if ctx.train else tf.reshape(x, shape)


@register_layer("self_attention")
class SelfAttentionLayer(ConcatInputLayer, Planned[SelfAttentionPlan]):
    """``y[t] = concat over heads h of sum over s of softmax over s(q[t, h] . k[s, h]) * v[s, h]``.

    ``q, k, v = x QKV`` by head, with q divided by the root of its size. With key_shift the energies are
    ``q[t, h] . (k[s, h] + key_shift[t, s])`` (Shaw et al. 2018). Frames after the end of a sequence don't count as
    keys; with attention_left_only a frame sees itself and the frames before it, nothing else. In a loop, and without a
    time axis, the frames are the steps: a step sees itself and the steps before it.

    With initial_state, the frames of earlier batches come before those of this one, for training on pieces of long
    sequences: all frames see them, but no gradient goes there.

    Parameter: ``QKV`` [in, 2 total_key_dim + n_out]: for each head its columns of q, k and v.
    Lengths: unchanged. The output is [batch, ..., time, n_out]. Vaswani et al. 2017, without the last projection.

    Example::

        network = {"output": {
            "class": "self_attention", "num_heads": 2, "total_key_dim": 6, "n_out": 4, "from": "data"}}
    """

    has_memory = True
    computes_all_steps = True
    has_inner_weights = True
    num_heads: int = option(help="number of heads")
    total_key_dim: int = option(help="total size of the keys of all heads")
    key_shift: OptionalLayerRef = option(
        None,
        help="layer with vectors [time, time, key] to add to the keys, see relative_positional_encoding",
        refs=True,
    )
    forward_weights_init: Init = option("glorot_uniform", help="initialiser of QKV")
    attention_dropout: float = option(0.0, check=dropout_rate, help="dropout on the attention weights in training")
    attention_left_only: bool = option(False, help="frames do not attend to later frames")

    initial_state: Optional[str] = option(
        None,
        help="frames that come before those of this batch: None or 'zeros': none; 'keep_over_epoch': those of the "
        "batches before, in this pass over the dataset; 'keep_over_epoch_no_init': in all passes",
    )
    restrict_state_to_last_seq: bool = option(False, help="with initial_state: only the last batch before this one")
    state_var_lengths: Union[None, int, str, Callable[..., Any]] = option(
        None, help="for exported graphs", inert="which of the kept frames are valid is always known"
    )

    history_grows = True

    def template(self, ctx: PlanContext) -> SelfAttentionPlan:
        """Infer the output: the feature axis replaced."""
        data = self.input_template(ctx)
        n_in = ctx.need_static(ctx.need_feature(data), "the feature axis of the source")
        out = ctx.out_feature()
        n_out = ctx.need_static(out, "out_dim")
        for name, size in (("total_key_dim", self.total_key_dim), ("n_out", n_out)):
            if self.num_heads < 1 or size % self.num_heads:
                raise ctx.error("%s is %d, which is not divisible by num_heads %d." % (name, size, self.num_heads))
        key, value = self.total_key_dim // self.num_heads, n_out // self.num_heads
        ctx.param("QKV", (n_in, 2 * self.total_key_dim + n_out), self.forward_weights_init)
        frames, axis = frames_of(ctx, data)
        if axis is not None:
            check_lengths_of(ctx, frames, axis)
        single_step = axis is None
        in_loop = axis is None or frames.dims[axis].is_loop
        # [batch, others, time, feature]
        batch, feature = frames.batch_axis, frames.feature_axis
        first = [] if batch is None else [batch]
        others = [i for i in range(frames.rank) if i not in (batch, axis, feature)]
        assert feature is not None
        perm = [*first, *others, *([] if axis is None else [axis]), feature]
        layout = frames.permuted(perm)
        assert layout.feature_axis is not None
        rows = layout.without_axes([layout.feature_axis])
        if self.key_shift is not None:
            check_shift(ctx, self.key_shift.output, key, rows, in_step=single_step)
        lead = rows.dims if single_step else rows.dims[:-1]
        parts = {part: _history(ctx, lead, self.num_heads, size) for part, size in zip(_PARTS, (key, value))}
        heads = ctx.new_spatial(self.num_heads, "heads")
        kept = kept_history(ctx, self, parts, in_step=single_step)
        can_stream = (
            kept is None
            and self.key_shift is None
            and (self.attention_left_only or in_loop)
            and _by_sequence(lead)
            and (single_step or rows.dims[-1].is_dynamic())
        )
        streamed = streamed_history(self, parts) if can_stream else None
        if single_step:
            for part, data in parts.items():
                ctx.loop_state(part, data, functools.partial(self._first_history, part, data))
        return SelfAttentionPlan(
            layout.with_feature(layout.feature_axis, out).replace(vocab=None),
            key=key,
            value=value,
            frames=frames,
            single_step=single_step,
            in_loop=in_loop,
            perm=perm,
            rows=rows,
            heads=heads,
            kept=kept,
            streamed=streamed,
        )

    def carries_history(self) -> bool:
        """Return whether it does: with an ``initial_state``, and without one where nothing forbids it."""
        return self.plan.kept is not None or (self.plan.streamed is not None and not self.node.history_masks)

    def _history(self, ctx: EmitContext) -> Optional[KeptHistory]:
        """Return the frames of earlier batches, or in a stream of earlier blocks; None: there are none."""
        if self.plan.kept is not None:
            return self.plan.kept
        goes_on = ctx.lowering.loop.continues if self.plan.single_step else ctx.continues
        return self.plan.streamed if goes_on else None

    def factors(self) -> Mapping[str, bool]:
        """Return the projection."""
        return {"QKV": False}

    def param_parts(self, name: str, shape: Sequence[int], axis: int, inputs: Parts) -> Parts:
        """Return the inputs for the rows, and query, key and value of each head for the columns."""
        if axis == 0:
            return inputs
        size = (self.node.output.dim or 0) // self.num_heads
        key = self.total_key_dim // self.num_heads
        sizes = (("query", key), ("key", key), ("value", size))
        return [Part("%s %d" % (part, head), n) for head in range(self.num_heads) for part, n in sizes]

    def feature_parts(self) -> Parts:
        """Return the values of each head."""
        return equal_parts(self.node.output.dim or 0, (self.node.output.dim or 0) // self.num_heads, "head")

    def ignores_padding(self) -> bool:
        """Return whether keys after the end of a sequence don't count, with no frames kept from other batches."""
        return self.plan.kept is None and not self.plan.single_step

    def state_name(self, key: str) -> str:
        """Return "k_left" or "v_left" for the history."""
        return "%s_left" % key[0] if key in _PARTS else key

    def _first_history(self, part: str, data: Data, ctx: EmitContext) -> Any:
        """Return the keys or values before the first step of a loop."""
        if stays_in_place(ctx, self):
            return first_in_place(ctx, self.num_heads, self.plan.key, self.plan.value, keys=part == _PARTS[0])
        history = self._history(ctx)
        return self._empty(ctx, data) if history is None else growing(history.before(ctx, part), data.rank - 3)

    def keep_history(self, ctx: EmitContext, parts: dict[str, Any], lens: Any) -> None:
        """Keep the keys and values after the last step of a loop for the next batch, see `KeptHistory.keep`."""
        history = self.plan.streamed if self.plan.kept is None else self.plan.kept
        assert history is not None
        history.keep(ctx, parts, lens)

    def _empty(self, ctx: EmitContext, data: Data) -> Any:
        axis = data.rank - 3
        sizes = [0 if i == axis else ctx.size(d) for i, d in enumerate(data.dims)]
        return empty_history(sizes, axis, data.dtype)

    def kept_per_output(self) -> float:
        """Return the queries, keys, values and results; weights are computed again."""
        return 2 + 2 * self.plan.key / self.plan.value

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the product with QKV, and attention in blocks of queries or with all energies in an array."""
        qkv = projected(ctx, self, self.plan.frames, self.plan.perm, "QKV")
        if self.plan.single_step and isinstance(ctx.loop_state(_PARTS[0]), InPlace):
            return attended_in_place(ctx, qkv, self, _PARTS)
        qkv = self._by_head(ctx, qkv)
        table = self._table(ctx)
        y = _reshaped(ctx, self._attention(ctx, qkv, table), ctx.output.dims)
        y.set_shape(ctx.output.static_shape)
        return y

    @form(_in_blocks, where=lambda self, *args: self._ops_for_blocks(*args))
    def _attention(self, ctx: EmitContext, qkv: Any, table: Optional[Any]) -> Any:
        return self._attend(ctx, qkv, table)

    def _attend(self, ctx: EmitContext, qkv: Any, table: Optional[Any]) -> Any:
        """Emit products of queries and keys, softmax, products with the values.

        :param qkv: [..., time, head, query key value]
        :param table: see `_table`
        :return: [..., time, head, value]
        """
        q, k, v = self._split(qkv)
        if self.plan.single_step:
            q = tf.expand_dims(q, -3)
            k, v = (extended(ctx, part, x, x.shape.rank - 2) for part, x in zip(_PARTS, (k, v)))
        elif (history := self._history(ctx)) is not None:
            k, v = (history.extended(ctx, part, x) for part, x in zip(_PARTS, (k, v)))
        weights = self._weights(ctx, q, k, table)
        if ctx.train:
            weights = ctx.dropout(weights, self.attention_dropout, seed="attention")
        return self._product(ctx, "...hts,...shd->...thd", weights, v)

    @staticmethod
    def _product(ctx: EmitContext, equation: str, x: Any, y: Any) -> Any:
        low = ctx.product_dtype
        return full(tf.einsum(equation, reduced(x, low), reduced(y, low)), low)

    def _weights(self, ctx: EmitContext, q: Any, k: Any, table: Optional[Any]) -> Any:
        """Emit energies and softmax, [..., head, queries, keys].

        :param q: [..., queries, head, key], scaled
        :param k: [..., keys, head, key]
        :param table: see `_table`
        """
        energy = self._product(ctx, "...thd,...shd->...hts", q, k)
        if self.key_shift is not None:
            energy = energy + shift_energy(
                ctx, self.key_shift, q, tf.shape(k)[-3], table, in_step=self.plan.single_step
            )
        return masked_softmax(energy, self._mask(ctx, tf.shape(k)[-3]))

    def _split(self, qkv: Any) -> tuple[Any, Any, Any]:
        """Return scaled queries, keys and values, [..., head, key or value]."""
        q, k, v = tf.split(qkv, [self.plan.key, self.plan.key, self.plan.value], axis=-1)
        return q * self.plan.key**-0.5, k, v

    def _by_head(self, ctx: EmitContext, qkv: Any) -> Any:
        """Return the projected frames as [..., time, head, query key value]."""
        return _reshaped(ctx, qkv, [*self.plan.rows.dims, self.num_heads, 2 * self.plan.key + self.plan.value])

    def _table(self, ctx: EmitContext) -> Optional[Any]:
        """Return the vectors of key_shift by clipped distance, see `shift_table`."""
        if self.key_shift is None or self.plan.single_step:
            return None
        return shift_table(ctx, self.key_shift, self.plan.rows.dims[-1])

    def weights_template(self) -> Data:
        """Return [batch, others, head, time, time]."""
        if self.plan.kept is not None:
            raise DimError("its keys are also those of other batches (initial_state)")
        *rows, time = self.plan.rows.dims
        return Data((*rows, self.plan.heads, time, time), self.node.output.dtype, time_axis=len(rows) + 1)

    def emit_weights(self, ctx: EmitContext) -> Any:
        """Emit the projection and the softmax."""
        if self._history(ctx) is not None:
            raise DimError("Layer %r: its keys are also those of other blocks of frames." % self.node.path)
        q, k, _ = self._split(self._by_head(ctx, projected(ctx, self, self.plan.frames, self.plan.perm, "QKV")))
        return self._weights(ctx, q, k, self._table(ctx))

    def _ops_for_blocks(self, ctx: EmitContext, qkv: Any, table: Optional[Any]) -> Optional[Any]:
        """Return the native ops if they compute this: all frames at once, a batch of sequences, float32."""
        if (
            self.plan.single_step
            or self._history(ctx) is not None
            or qkv.shape.rank != 4
            or self.plan.rows.batch_axis != 0
        ):
            return None
        if ctx.differs_by_frame(self.plan.rows.dims[-1]) or (self.key_shift is not None and table is None):
            return None
        if qkv.dtype != tf.float32:
            return None
        return usable_attention_ops(self.plan.key, with_table=table is not None, product_dtype=ctx.product_dtype)

    def _mask(self, ctx: EmitContext, keys: Any) -> Optional[Any]:
        """Return the mask of valid keys, broadcastable to [..., head, queries, keys]; None: all."""
        history = self._history(ctx)
        if self.plan.single_step:
            mask = history_mask(ctx, keys) if history is None else history.mask_of_step(ctx, keys)
            count_step(ctx)
            if mask is not None and mask.shape.rank == 2:  # [batch, keys]
                mask = expand_at(mask, range(1, self.plan.rows.rank + 2))
            return mask
        current = self._mask_of_frames(ctx)
        if history is None:
            return current
        dim = self.plan.rows.dims[-1]
        frames = tf.sequence_mask(ctx.lens(dim), ctx.size(dim))
        frames = tf.broadcast_to(frames, tf.stack([ctx.size(self.plan.rows.dims[0]), ctx.size(dim)]))
        return history.mask(ctx, frames, current, self.plan.rows.rank + 2)

    def _mask_of_frames(self, ctx: EmitContext) -> Optional[Any]:
        """Return the mask of valid keys among the frames of this batch; None: all."""
        axis = self.plan.rows.rank - 1
        dim: Dim = self.plan.rows.dims[axis]
        if self.attention_left_only or self.plan.in_loop:
            # No key after the end of a sequence is seen by a frame within it.
            return left_only_mask(ctx.size(dim))
        if not dim.is_dynamic():
            return None
        return tf.expand_dims(tf.expand_dims(ctx.mask(self.plan.rows, axis), -2), -2)


def _by_sequence(lead: Sequence[Dim]) -> bool:
    """Return whether there are sequences, whose frames may come block by block, with static axes besides."""
    return bool(lead) and lead[0].is_batch and not any(dim.is_dynamic() for dim in lead[1:])


def _history(ctx: PlanContext, rows: Sequence[Dim], heads: int, size: int) -> Data:
    """Return the template of keys or values, [batch, others, history, head, size].

    :param rows: batch and others
    """
    history, head = ctx.new_spatial(None, "history"), ctx.new_spatial(heads, "heads")
    return Data((*rows, history, head, ctx.new_feature(size)), ctx.float_dtype, feature_axis=len(rows) + 2)


def check_shift(ctx: PlanContext, shift: Data, key: int, rows: Data, *, in_step: bool) -> None:
    """Check for [time, time, key] or [batch, time, time, key]; in a step without the first time axis.

    :param shift: template of the vectors
    :param key: size of the keys of a head
    :param rows: template of the frames without features
    """
    rank = shift.rank - (0 if shift.batch_axis is None else 1)
    if rank != (2 if in_step else 3) or shift.dims[-1].size != key:
        raise ctx.error(
            "key_shift is %s, but it must be [%s, key=%d], like a relative_positional_encoding with n_out %d."
            % (shift, "time" if in_step else "time, time", key, key)
        )
    if shift.batch_axis not in (None, 0) or (shift.batch_axis == 0 and rows.rank != rank - 1):
        raise ctx.error("key_shift is %s; its batch axis must be the first, with no axes but those of time." % shift)


def shift_table(ctx: EmitContext, shift_layer: Node, queries: Dim) -> Optional[Any]:
    """Return the vectors by clipped distance, [2 clipping + 1, key]; None if they are not given so.

    :param shift_layer: gives the vectors
    :param queries: the dim of the frames that attend
    """
    return ctx.aux(shift_layer, TABLE) if shift_layer.output.dims[0] is queries else None


def shift_energy(ctx: EmitContext, shift_layer: Node, q: Any, keys: Any, table: Optional[Any], *, in_step: bool) -> Any:
    """Compute the energies of the key shift, [..., head, queries, keys].

    :param shift_layer: gives the vectors
    :param q: [..., queries, head, key]
    :param keys: their number
    :param table: see `shift_table`
    """
    if table is not None:
        assert isinstance(shift_layer.layer, RelativePositionalEncodingLayer)
        return by_distance(tf.einsum("...thd,cd->...htc", q, table), keys, shift_layer.layer.clipping)
    before = picked_before(ctx) if in_step else None
    if before is not None:
        return shift_of_picked(ctx, shift_layer, q, before, keys)
    shift = ctx.value(shift_layer)
    if in_step:
        shift = tf.expand_dims(shift, -3)[..., :keys, :]
    if shift_layer.output.batch_axis is None:
        return tf.einsum("...thd,tsd->...hts", q, shift)
    return tf.einsum("bthd,btsd->bhts", q, shift)


def projected(ctx: EmitContext, layer: ConcatInputLayer, frames: Data, perm: Sequence[int], param: str) -> Any:
    """Return the product with a parameter [in, out], for all frames that are not padding if the source has packed ones.

    :param frames: template of the input, in a loop with the axis of the steps
    :param perm: the order of its axes, with the features last
    :param param: its name
    """
    w, low, packing = matrix(ctx, param), ctx.product_dtype, None
    if frames is layer.input and list(perm) == [0, 1, 2] and not layer.dropout and len(layer.sources) == 1:
        packing = ctx.lowering.packing.of(layer.source, ctx.lowering.dims)
    if packing is not None:
        frames_of_source = ctx.lowering.packing.value(layer.source, packing, ctx.lowering.values)
        return packing.unpack(full(product(frames_of_source, w, train=ctx.train, product_dtype=low), low))
    x = transpose(with_frames(ctx, layer.emit_input(ctx), layer.input, frames), perm)
    return full(product(x, w, train=ctx.train, product_dtype=low), low)


def stays_in_place(ctx: EmitContext, layer: Any) -> bool:
    """Return whether the keys and values of a layer are an `InPlace` state in the loop that begins here.

    :param layer: the `SelfAttentionLayer`
    """
    return (
        ctx.lowering.search.in_place
        and (layer.key_shift is None or layer.key_shift.output.batch_axis is None)
        and not ctx.node.kept
        and not ctx.node.history_masks
        and [dim.is_batch for dim in ctx.output.dims] == [True, False]
        and ctx.float_dtype == "float32"
        and ctx.product_dtype is None
        and in_place_ops(layer.plan.key) is not None
    )


def first_in_place(ctx: EmitContext, heads: int, key: int, value: int, *, keys: bool) -> InPlace:
    """Return the state of a layer before the first step: that of the keys has the values too.

    :param key: size of the keys of a head; ``value`` likewise
    """
    if not keys:
        return InPlace((), ())
    return empty_in_place([heads * key, heads * value], ctx.size(ctx.output.dims[0]))


def attended_in_place(ctx: EmitContext, qkv: Any, layer: Any, names: Sequence[str]) -> Any:
    """Return the output of a step, and carry its keys and values on.

    :param qkv: [batch * beam, heads * (2 * key + value)]
    :param layer: the `SelfAttentionLayer`
    :param names: of the states of keys and values
    """
    (keys, values), (rows,) = ctx.loop_state(names[0])
    shift = None if layer.key_shift is None else ctx.value(layer.key_shift)
    y, keys, values, rows = native_beam_attention(
        in_place_ops(layer.plan.key), qkv, keys, values, rows, heads=layer.num_heads, shift=shift
    )
    ctx.set_loop_state(names[0], InPlace((keys, values), (rows,)))
    ctx.set_loop_state(names[1], ctx.loop_state(names[1]))
    y.set_shape(ctx.output.static_shape)
    return y

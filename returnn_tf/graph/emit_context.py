"""The interface of a layer while its ops are emitted."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, Optional, TypeVar, Union

from returnn_tf.config.errors import DimError
from returnn_tf.graph.after_step.meta_loss import MetaLoss
from returnn_tf.graph.aux_values import Aux
from returnn_tf.graph.carried_state import KeptSpec
from returnn_tf.graph.layer import Node
from returnn_tf.graph.lowering import Lowering
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.params.custom import emit_custom
from returnn_tf.graph.params.reuse import CustomParam, LayerAsParam
from returnn_tf.graph.postponed import Postponed
from returnn_tf.graph.rounded_variable import RoundedVariable
from returnn_tf.ops.after_product import dropout
from returnn_tf.ops.frames.shape import expand_at, to_layout
from returnn_tf.ops.frames.skipped_padding import FramePacking
from returnn_tf.ops.mixed_precision import reduced
from returnn_tf.ops.rounded import RoundedMatrix
from returnn_tf.ops.sequence.beam import flat_index
from returnn_tf.tensor import Data, Dim, batch_dim
from returnn_tf.tensor.dim_binding import have_same_origin
from returnn_tf.tensor.match import union_of_axes
from returnn_tf.util.lazy_tf import tf

T = TypeVar("T")

_KEEP_IN_LOOP = ", or set 'optimize_move_layers_out': False in the rec layer around it"


class EmitContext:
    """The context passed to `Layer.emit`.

    :param node: the layer
    :param packing: how the frames of all values are packed; None: they are not
    :param may_reduce: whether values and parameters are given in the type of mixed_precision, if the layer supports it
    """

    def __init__(
        self, node: Node, lowering: Lowering, *, may_reduce: bool = False, packing: Optional[FramePacking] = None
    ) -> None:
        self.node = node
        self.lowering = lowering
        self._packing = packing
        self._reduces = may_reduce and node.layer.reduces_precision
        self.train = lowering.options.train
        self.search = node.in_search
        self.semantics = lowering.options.semantics
        self.behavior_version = lowering.options.semantics.behavior_version
        self.float_dtype = lowering.options.semantics.float_dtype
        self.product_dtype = lowering.options.semantics.product_dtype

    @property
    def output(self) -> Data:
        """Return the template of this layer's output, with the dims that the layer inferred."""
        return self.node.own_output or self.node.output

    @property
    def step(self) -> Any:
        """Return the global train step, int64 scalar."""
        return self.lowering.step

    def scales(self, *names: str) -> dict[str, Any]:
        """Return the scalars that this run has in place of the numbers of some options, by name."""
        given = self.lowering.options.scales
        return {name: given[self.node.path, name] for name in names if (self.node.path, name) in given}

    # --- values ---

    def value(self, node: Node, sub: Optional[str] = None) -> Any:
        """Return the tensor of a node (or of its further output ``sub``), in the layout of its template.

        For a layer whose batch axis holds the hypotheses of a search, all values have them.
        """
        if self._packing is not None and node in self.node.sources:
            return self.lowering.packing.value(node, self._packing, self.lowering.values)
        value = self.lowering.values.outputs[node] if sub is None else self.lowering.values.sub_outputs[node, sub]
        data = node.output if sub is None else node.sub_outputs.get(sub, node.output)
        if self.beam > 1 and data.beam is None and data.batch_axis is not None:
            value = tf.repeat(value, self.beam, axis=data.batch_axis)
        return self._operand(value)

    def _operand(self, value: Any) -> Any:
        """Return a value or parameter in the precision in which this layer computes."""
        return reduced(value, self.product_dtype) if self._reduces else value

    def source(self, index: int = 0) -> Any:
        """Return the tensor of a source."""
        return self.value(self.node.sources[index])

    def broadcast(self, node: Node, into: Data) -> Any:
        """Return the tensor of a node, transposed and expanded so that it broadcasts against the layout."""
        return to_layout(self.value(node), node.output, into)

    def set_sub_output(self, name: str, tensor: Any) -> None:
        """Set a further output, see `PlanContext.sub_output`."""
        self.lowering.values.sub_outputs[self.node, name] = tensor

    # --- lengths: of sequences, or of the hypotheses of a search ---

    @property
    def beam(self) -> int:
        """Return the hypotheses per sequence in the batch axis of the output; 1 without search and within a loop."""
        data = self.node.output if self.node.planned else None
        return 1 if data is None or data.beam is None else data.beam.size

    def lens(self, dim: Dim) -> Any:
        """Return the lengths of a dim: int32 [batch], or a scalar where they don't depend on the sequence."""
        return self.lowering.dims.lens_in_beam(dim, self.beam)

    def lens_by_seq(self, dim: Dim, batch: Dim) -> Any:
        """Return the lengths of a dim for each sequence, from 0 to the size of the padded axis, int32 [batch]."""
        lens, size, count = self.lens(dim), self.size(dim), self.size(batch)
        return self._made_once(
            "lengths", [lens, size, count], lambda: tf.broadcast_to(tf.clip_by_value(lens, 0, size), [count])
        )

    def size(self, dim: Dim) -> Any:
        """Return the size of the padded axis: int if static, else int32 scalar; of a batch dim, its entries."""
        size = self.lowering.dims.get_size(dim)
        return size * self.beam if dim.is_batch and self.beam > 1 else size

    def shape(self, data: Data) -> list[Any]:
        """Return the sizes of all axes of a template."""
        return [self.size(d) for d in data.dims]

    def shape_vector(self, sizes: Sequence[Union[Dim, int]]) -> Any:
        """Return sizes as a vector, int32 [number], made once per graph.

        :param sizes: dims, or static sizes
        """
        found = [size if isinstance(size, int) else self.size(size) for size in sizes]
        return self._made_once("sizes", found, lambda: tf.stack(found))

    def _made_once(self, what: str, inputs: Sequence[Any], make: Callable[[], Any]) -> Any:
        """Return a function of lengths and sizes, made once per graph.

        :param inputs: all of them, ints or tensors
        """
        made = self.lowering.dims.made
        key = (what, *(x.ref() if tf.is_tensor(x) else x for x in inputs))
        if key not in made:
            made[key] = make()
        return made[key]

    def define_lens(self, dim: Dim, lens: Any, size: Any = None) -> None:
        """Set the lengths of a dim that this layer defines.

        :param lens: int32 [batch] or scalar; [batch * beam] in a layer after a search
        :param size: of the padded axis; defaults to the largest length
        """
        lens, dim = tf.cast(lens, tf.int32), dim.unprioritized()
        self.lowering.dims.lens[dim] = lens
        if self.beam > 1 and lens.shape.rank != 0:
            self.lowering.dims.beam_dims[dim] = self.beam
        if size is not None:
            self.lowering.dims.sizes[dim] = size

    def define_lens_over(self, dim: Dim, over: Sequence[Dim], lens: Any, size: Any) -> None:
        """Set lengths that vary with the frames of other dims, not only with the sequence.

        :param over: these dims, the batch dim included if they vary with the sequence as well
        :param lens: int32 with an axis for each of ``over``
        :param size: of the padded axis
        """
        dim = dim.unprioritized()
        self.lowering.dims.lens_over[dim] = tuple(over), lens
        if self.beam > 1 and any(d.is_batch for d in over):
            self.lowering.dims.beam_dims[dim] = self.beam
        self.lowering.dims.sizes[dim] = size

    def define_lens_by(self, dim: Dim, data: Data, lens: Any) -> Any:
        """Set lengths that are values of a layer: by sequence, the same for all, or by frame.

        :param data: the template of these values
        :return: the size of the padded axis, the largest of all values
        """
        lens = tf.maximum(tf.cast(lens, tf.int32), 0)
        size = tf.reduce_max(tf.concat([tf.reshape(lens, [-1]), [0]], axis=0))
        if any(not d.is_batch for d in data.dims):
            self.define_lens_over(dim, data.dims, lens, size)
        else:
            self.define_lens(dim, lens, size)
        return size

    def define_running(self, dim: Dim, over: Dim) -> None:
        """Set the lengths of a dim that has the frames of another one up to the current one: t + 1 in frame t."""
        size = self.size(over)
        self.define_lens_over(dim, [over], tf.range(size) + 1, size)
        self.lowering.dims.running[dim] = over

    def define_size(self, dim: Dim, size: Any) -> None:
        """Set the number of entries of a batch dim that this layer defines."""
        self.lowering.dims.sizes[dim] = size

    def lens_by_frame(self, dim: Dim, into: Data) -> Any:
        """Return lengths that vary with the frames of other dims, in a layout with these dims."""
        over, lens = self.lowering.dims.lens_by_frame(dim)
        return to_layout(lens, Data(over, "int32"), into, [self._axis_of_frames(dim, d, into) for d in over])

    def has_lens(self, dim: Dim) -> bool:
        """Return whether the lengths of a dynamic dim are known at this point."""
        if dim.size is not None or dim in self.lowering.dims.lens:
            return True
        return dim.expr is not None and all(self.has_lens(a) for a in dim.expr.args if isinstance(a, Dim))

    def mask(self, data: Data, axis: int) -> Any:
        """Return the bool mask of the valid frames of a dynamic axis, with size 1 on all other axes but batch."""
        dim = data.dims[axis]
        if self.differs_by_frame(dim):
            return self._mask_by_frame(data, axis)
        flat = self.seq_mask(dim)
        if flat.shape.rank == 1:
            return expand_at(flat, [i for i in range(data.rank) if i != axis])
        batch = data.batch_axis
        if batch is None:
            raise DimError(
                "the source %s has no batch axis, but each sequence has its own length in %s. First combine it with a "
                "source that has one." % (data, dim)
            )
        if batch > axis:
            flat = tf.transpose(flat)
        return expand_at(flat, [i for i in range(data.rank) if i not in (axis, batch)])

    def differs_by_frame(self, dim: Dim) -> bool:
        """Return whether the lengths vary with the frames of other dims here, see `define_lens_over`."""
        return any(not d.is_batch for d in self.lengths_over(dim))

    def lengths_over(self, dim: Dim) -> tuple[Dim, ...]:
        """Return the axes of lengths that vary with the frames of other dims; empty if they do not."""
        return self.lowering.dims.lens_by_frame(dim)[0] if self.lowering.dims.is_by_frame(dim) else ()

    def knows_mask(self, data: Data, axes: Sequence[int]) -> bool:
        """Return whether `mask` is defined for these axes: whether they include those that the lengths vary with."""
        over = [d for axis in axes for d in self.lengths_over(data.dims[axis]) if not d.is_batch]
        return all(data.axis_of_steps(d) is not None for d in over)

    def _axis_of_frames(self, dim: Dim, frames: Dim, data: Data) -> int:
        """Return the axis of data that the lengths of a dim vary with.

        :param frames: the batch dim or that of frames
        :raises DimError: there is none
        """
        axis = data.batch_axis if frames.is_batch else data.axis_of_steps(frames)
        if axis is None:
            raise DimError(
                "the lengths of the axis %s vary with the frames of the axis %s, which %s lacks. Combine it with "
                "that axis first, e.g. by dot with a query%s."
                % (dim, frames, data, _KEEP_IN_LOOP if frames.is_loop else "")
            )
        return axis

    def _mask_by_frame(self, data: Data, axis: int) -> Any:
        dim = data.dims[axis]
        of, lens = self._lens_of(dim)
        over = of.dims
        targets = [self._axis_of_frames(dim, frames, data) for frames in over]
        return to_layout(tf.sequence_mask(lens, self.size(dim)), Data((*over, dim), "bool"), data, [*targets, axis])

    def _lens_of(self, dim: Dim) -> tuple[Data, Any]:
        """Return (the template of the lengths of a dim, the lengths), also of those that vary with other frames."""
        if not self.differs_by_frame(dim):
            lens = self.lens(dim)
            return Data((batch_dim,) if lens.shape.rank else (), "int32"), lens
        over, lens = self.lowering.dims.lens_by_frame(dim)
        if self.beam > 1 and dim not in self.lowering.dims.beam_dims:
            for i in [i for i, d in enumerate(over) if d.is_batch]:
                lens = tf.repeat(lens, self.beam, axis=i)
        return Data(over, "int32"), lens

    def with_same_lens(self, x: Any, dim: Dim, other: Dim, hint: str) -> Any:
        """Return a tensor that fails the step if two dims for one of its axes differ in their lengths.

        Lengths that follow from the same ones may differ by a rounding: the plan has compared them.

        :param dim: what the layer, or its source, has there
        :param other: what takes its place
        :param hint: how to fix it
        """
        if dim is other or not dim.is_dynamic() or have_same_origin(dim, other):
            return x
        (of, lens), (of_other, wanted) = self._lens_of(dim), self._lens_of(other)
        if lens is wanted:
            return x
        dims = union_of_axes([of.dims, of_other.dims])
        layout = Data(union_of_axes([(batch_dim,), dims]) if dims else (), "int32")
        lens, wanted = to_layout(lens, of, layout), to_layout(wanted, of_other, layout)
        same = tf.equal(lens, wanted)
        frames = self.masks(layout, layout.dynamic_axes)
        if frames is not None:
            same = tf.logical_or(same, tf.logical_not(frames))
        lens, wanted = (tf.broadcast_to(value, tf.shape(same)) for value in (lens, wanted))
        message = "the axis %s must have the lengths of %s. %s" % (dim, other, hint)
        by_seq = tf.reduce_all(same, axis=list(range(1, layout.rank))) if layout.rank else same
        with tf.control_dependencies(self.require(by_seq, message, lengths=lens, instead_of=wanted)):
            return tf.identity(x)

    def require(self, good: Any, message: str, **shown: Any) -> list[Any]:
        """Fail the step if a sequence of the batch violates the condition.

        :param good: bool [batch], or a scalar for all sequences
        :param message: what is wrong and how to fix it; layer path and class are prepended, the indices of the bad
            sequences within the batch and ``shown`` appended
        :param shown: name -> [batch, ...] or a scalar, printed for the bad sequences
        :return: for ``tf.control_dependencies``, so that no other op fails earlier with a worse message
        """
        # TensorFlow escapes quotes in its output, so the message has none.
        where = "Layer %s (class %s)" % (self.node.path, self.node.layer.class_name)
        parts: list[Any] = ["%s: %s" % (where, message)]
        if good.shape.rank:
            bad = tf.cast(tf.reshape(tf.where(tf.logical_not(good)), [-1]), tf.int32)
            shown = {name: tf.gather(values, bad) for name, values in shown.items()}
            parts = [parts[0] + " The sequences of the batch, counted from 0:", bad]
        for name, values in shown.items():
            parts += ["%s:" % name.replace("_", " "), values]
        op = tf.debugging.Assert(tf.reduce_all(good), parts, summarize=20)
        return [] if op is None else [op]

    def seq_mask(self, dim: Dim) -> Any:
        """Return the bool mask [batch, size] of the valid frames, or [size] if all sequences have the same length."""
        cache = self.lowering.dims.masks
        if (dim, self.beam) not in cache:
            cache[dim, self.beam] = tf.sequence_mask(self.lens(dim), self.size(dim))
        return cache[dim, self.beam]

    def seq_mask_by_batch(self, data: Data, axis: int) -> Any:
        """Return the bool mask [batch, size] of the valid frames of a dynamic axis, even if all lengths are equal."""
        flat = self.seq_mask(data.dims[axis])
        if flat.shape.rank == 2 or data.batch_axis is None:
            return flat
        return tf.broadcast_to(flat, [self.size(data.dims[data.batch_axis]), tf.shape(flat)[0]])

    def masks(self, data: Data, axes: Sequence[int]) -> Any:
        """Return `mask` of all dynamic axes among these, combined; None if no axis is dynamic."""
        result = None
        for axis in axes:
            if data.dims[axis].is_dynamic():
                mask = self.mask(data, axis)
                result = mask if result is None else tf.logical_and(result, mask)
        return result

    # --- the step of a loop ---

    @property
    def ended(self) -> Any:
        """Return the mask of ended sequences or hypotheses, bool [batch]; None if unknown.

        For these the step only runs on because others have not ended, so their values don't matter.
        """
        hyps = self.lowering.search.hypotheses
        return self.lowering.loop.ended if hyps is None else hyps.ended

    def loop_state(self, key: str) -> Any:
        """Return the value of a state after the previous step, see `PlanContext.loop_state`."""
        return self.lowering.loop.inputs[self.node, key]

    def set_loop_state(self, key: str, value: Any) -> None:
        """Set the value of a state for the next step."""
        self.lowering.loop.next_states[self.node, key] = value

    def kept(self, key: str) -> Any:
        """Return the value kept after the last batch, see `PlanContext.keep`; zeros in the first one."""
        return self.kept_of(self.node.kept[key])

    def keep(self, key: str, value: Any) -> None:
        """Keep a value for the next batch."""
        self.keep_of(self.node.kept[key], value)

    def kept_of(self, spec: KeptSpec) -> Any:
        """Return the value kept after the last batch, by its specification."""
        sizes = [
            0 if dim.is_dynamic() else self.size(dim) for dim in spec.data.dims
        ]  # an axis that grows begins with 0
        first = tf.zeros(sizes, spec.data.dtype)
        first.set_shape(spec.shape)
        return self.lowering.carried.read(spec, first)

    def keep_of(self, spec: KeptSpec, value: Any) -> None:
        """Keep a value for the next batch, by its specification."""
        carried = self.lowering.carried
        if self.continues:
            carried.write(spec, value)  # an output of the graph
        else:
            self.update(lambda: carried.write(spec, value))

    # --- recurrences over frames, in graphs that compute sequences block by block; elsewhere they start over ---

    @property
    def continues(self) -> bool:
        """Return whether recurrent state carries over from the previous block; not within a loop or a branch."""
        return not self.lowering.is_child and self.lowering.carried.resumes

    def state_before(self, name: str, data: Data, first: Any) -> Any:
        """Return a state before the first frame of this block.

        :param name: of the state, within the layer
        :param data: template, without the axis of the frames
        :param first: the state before the first frame of a sequence, in this layout
        """
        if not self.has_stream(data):
            return first
        state = self.lowering.carried.read(self._spec(name, data), first)
        beam, axis = self.node.output.beam, data.batch_axis
        if beam is None or axis is None or beam.of not in self.lowering.search.sources:
            return state
        return tf.gather(state, flat_index(self.lowering.search.sources[beam.of], beam.size), axis=axis)

    def state_after(self, name: str, data: Data, last: Any) -> None:
        """Pass on the state after the last frame of each sequence in this block, see `state_before`."""
        if self.has_stream(data):
            self.lowering.carried.write(self._spec(name, data), last)

    def has_stream(self, data: Data) -> bool:
        """Return whether a state belongs to a sequence, not to one of a varying number of frames or chunks of it.

        :param data: template of the state
        """
        return self.continues and all(
            dim.expr is None and dim not in self.lowering.dims.sizes if dim.is_batch else not dim.is_dynamic()
            for dim in data.dims
        )

    def _spec(self, name: str, data: Data) -> KeptSpec:
        path = self.node.path
        if data.batch_axis is not None and data.beam is None:
            data = data.replace(beam=self.node.output.beam)
        return KeptSpec("%s/%s" % (path, name), data, resets=False, is_param=False, layer_path=path)

    # --- parameters, randomness, side effects ---

    def param(self, name: str) -> Any:
        """Return the value of a parameter, with parameter noise and dropout in training; see `PlanContext.param`.

        Noise and dropout are those of this layer: others that use the parameter see it without them.
        """
        provider = self.node.params[name]
        layer = self.node.layer
        if not self.train or not (layer.param_variational_noise or layer.param_dropout):
            return self._operand(self._plain(provider))
        known = self.lowering.params.noisy
        if (self.node, name) not in known:
            known[self.node, name] = self._noisy(name, provider, self._plain(provider))
        return self._operand(known[self.node, name])

    def rounded_matrix(self, name: str) -> Optional[RoundedMatrix]:
        """Return a parameter that is stored as smaller numbers, or None if it is read as floats, as with noise."""
        variable = self._rounded_variable(name)
        if variable is None:
            return None
        provider, known = self.node.params[name], self.lowering.params.rounded
        if provider not in known:
            known[provider] = variable.matrix()
        return known[provider]

    def has_rounded_matrix(self, name: str) -> bool:
        """Return whether `rounded_matrix` returns one, without reading it."""
        return self._rounded_variable(name) is not None

    def _rounded_variable(self, name: str) -> Optional[RoundedVariable]:
        provider = self.node.params[name]
        if not self.node.layer.multiplies_rounded(name):
            return None
        if self.train and (self.node.layer.param_variational_noise or self.node.layer.param_dropout):
            return None
        variable = self.lowering.params.variables.get(provider.name) if isinstance(provider, ParamSpec) else None
        return variable if isinstance(variable, RoundedVariable) else None

    def _plain(self, provider: Any) -> Any:
        """Return the value of a parameter, whatever provides it."""
        if isinstance(provider, LayerAsParam):  # not cached, since the layer may be one of a step
            data = provider.node.output
            into = Data.from_dims(provider.dims, dtype=data.dtype)
            return to_layout(self.value(provider.node), data, into)
        known = self.lowering.params.read
        if provider not in known:
            if isinstance(provider, CustomParam):
                known[provider] = emit_custom(provider, self.readable, self.lowering.params.variables)
            else:
                variables = self.lowering.params.variables
                value = tf.convert_to_tensor(variables[provider.name])
                known[provider] = value if provider.adapter is None else provider.adapter.added_to(value, variables)
        return known[provider]

    def readable(self, provider: Any) -> Any:
        """Return a parameter as functions of the config see it: as a variable if it is one, else as a tensor."""
        is_variable = isinstance(provider, ParamSpec) and provider.adapter is None
        return self.lowering.params.variables[provider.name] if is_variable else self._plain(provider)

    def _noisy(self, name: str, provider: Any, value: Any) -> Any:
        layer = self.node.layer
        if isinstance(provider, ParamSpec) and not provider.trainable:
            return value
        noise = layer.param_variational_noise
        if noise:
            value += tf.random.stateless_normal(
                tf.shape(value), self.seed("noise/" + name), stddev=noise, dtype=value.dtype
            )
        rate = layer.param_dropout
        if rate and value.shape.rank >= (layer.param_dropout_min_ndim or 0):
            value = dropout(value, rate, self.seed("dropout/" + name))
        return value

    def seed(self, name: str = "", *, of: Optional[str] = None) -> Any:
        """Return a seed for ``tf.random.stateless_*``, different for every layer, name and train step.

        :param of: what shares the seed, instead of the layer
        """
        of = self.node.path if of is None else of
        crc = zlib.crc32(("%d/%s/%s" % (self.lowering.options.seed, of, name)).encode("utf8")) & 0x7FFFFFFF
        step = tf.constant(0, tf.int64) if self.step is None else tf.cast(self.step, tf.int64)
        if self.lowering.loop.index is not None:
            # The stride keeps the steps of this loop from drawing the numbers of another train step.
            step = step + (tf.cast(self.lowering.loop.index, tf.int64) + 1) * 2**40
        return tf.stack([tf.constant(crc, tf.int64), step])

    def dropout(
        self,
        x: Any,
        rate: float,
        *,
        noise_shape: Optional[Sequence[Any]] = None,
        seed: str = "dropout",
        of: Optional[str] = None,
    ) -> Any:
        """Apply inverted dropout: zero entries with probability ``rate``, scale the others by ``1 / (1 - rate)``.

        :param noise_shape: sizes of the mask, 1 where it is shared
        :param of: what shares the mask, instead of the layer alone
        """
        if not rate:
            return x
        rows = self._packing.rows if self._packing is not None and noise_shape is None else None
        return dropout(x, rate, self.seed(seed, of=of), noise_shape, rows)

    def variable(self, name: str) -> Any:
        """Return the variable of a parameter, for assignments; also where it is that of a layer that provides it.

        :raises ConfigError: what provides it is no variable, or a layer that has its axes in another order
        """
        found = self._variable_of(self.node.params[name])
        if found is None:
            raise DimError(
                "Layer %r (class %r) updates its parameter %r, so what reuse_params gives for it must be the parameter "
                "of another layer, or a layer of class 'variable' with the axes in this order."
                % (self.node.path, self.node.layer.class_name, name)
            )
        return found

    def _variable_of(self, provider: Any) -> Any:
        if isinstance(provider, LayerAsParam):
            params = list(provider.node.params.values())
            same = len(params) == 1 and provider.node.own_output is None and not provider.node.deps
            if not same or provider.dims != provider.node.output.dims:
                return None
            provider = params[0]
        return self.lowering.params.variables[provider.name] if isinstance(provider, ParamSpec) else None

    def update(self, func: Callable[[], Any]) -> None:
        """Schedule a side effect to run once after the outputs of this step are computed, e.g. running means."""
        self.lowering.after_step.updates.append(func)

    def add_meta_loss(self, loss: MetaLoss) -> None:
        """Add a loss on the gradient of the objective, see `returnn_tf.graph.after_step.meta_loss`.

        :raises ConfigError: the layer is computed conditionally, or within a loop
        """
        self._need_outside()
        self.lowering.after_step.meta_losses.append(loss)

    def set_sink_values(self, values: dict[str, Any]) -> None:
        """Set the values that the sink of this layer gets after the step, see `returnn_tf.graph.after_step.sinks`.

        :raises ConfigError: the layer is computed conditionally, or within a loop
        """
        self._need_outside()
        self.lowering.after_step.sink_values[self.node.path] = values

    def _need_outside(self) -> None:
        if self.lowering.is_child:
            raise DimError(
                "Layer %r (class %r) can't be in a loop, a branch of 'cond' or the like. Put it outside."
                % (self.node.path, self.node.layer.class_name)
            )

    def set_aux(self, node: Node, aux: Aux[T], value: T) -> None:
        """Store an auxiliary value of a node, to be read by `aux`; with the padding, if its frames are packed."""
        packing = self._packing
        kept: Any = value if packing is None else Postponed(lambda: aux.each(packing.unpack, value))
        self.lowering.values.set_aux(node, aux, kept)

    def aux(self, node: Node, aux: Aux[T]) -> Optional[T]:
        """Return the auxiliary value of a node stored by `set_aux`, or None."""
        value: Optional[T] = self.lowering.values.aux.get(node, {}).get(aux)
        return value

    def forward_aux(self, source: Optional[Node] = None) -> None:
        """Reuse the auxiliary values of a node for this layer, whose output is the same.

        :param source: default: the first source
        """
        source = self.node.sources[0] if source is None else source
        values = self.lowering.values.aux.get(source, {})
        for aux in values:
            if aux.forwarded:
                self.lowering.values.set_aux(self.node, aux, Postponed(partial(values.__getitem__, aux)))

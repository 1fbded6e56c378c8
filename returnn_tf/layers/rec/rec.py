"""`rec`: a recurrent cell over the frames of its source."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from returnn_tf.config.options import Written, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.option_types import Axis, Init
from returnn_tf.graph.param_parts import Part, Parts, equal_parts, total_size
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.copy import CopyLayer
from returnn_tf.layers.rec.cell_step import before_loop, emit_step
from returnn_tf.layers.rec.state import (
    HIDDEN_STATE,
    INITIAL_KEYWORDS,
    HiddenState,
    InitialState,
    emit_initial_state,
    plan_initial_state,
)
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.loop_axis import frames_of, with_frames
from returnn_tf.layers.shared.nested import base_references
from returnn_tf.ops.cells import Cell, run_cell, unit_class
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

#: Options which only have a meaning where the unit is a network for one step.
_STEP_NETWORK_OPTIONS = (
    "max_seq_len",
    "include_eos",
    "cheating",
    "declare_rec_time",
    "optimize_move_layers_out",
    "checkpoint_steps",
)


@register_layer("rec")
class RecLayer(ConcatInputLayer):
    """A recurrent cell: ``output_t, state_t = cell(x_t, state_{t-1})`` over all frames t of each sequence.

    With direction -1 each sequence runs from its last frame to its first one; the output is in the order of the input.

    ======================  ================================================================  ==========================
    unit                    parameters below ``<layer>/rec/``                                 gates, paper
    ======================  ================================================================  ==========================
    lstm, lstmp,            ``W`` [in, 4 n], ``W_re`` [n, 4 n], ``b`` [4 n]                   j, i, f, o: Hochreiter &
    nativelstm2, ...                                                                          Schmidhuber 1997
    nativelstmlowmem        ``W`` [in + n, 4 n], ``b`` [4 n]                                  j, i, f, o
    standardlstm            ``lstm_cell/kernel`` [in + n, 4 n], ``lstm_cell/bias`` [4 n];     i, j, f, o, forget bias 1;
                            with peepholes ``w_i_diag``, ``w_f_diag``, ``w_o_diag`` [n]       Sak et al. 2014
    basiclstm               ``basic_lstm_cell/kernel``, ``/bias``                             as standardlstm
    zoneoutlstm             as standardlstm                                                   Krueger et al. 2017
    gru                     ``gru_cell/gates/kernel`` [in + n, 2 n], ``gates/bias`` [2 n],    r, u: Cho et al. 2014
                            ``candidate/kernel`` [in + n, n], ``candidate/bias`` [n]
    basicrnn                ``basic_rnn_cell/kernel`` [in + n, n], ``/bias`` [n]              Elman 1990
    rhn                     ``W`` [in, 2 n], ``b`` [2 n], ``rhn_cell/depth_<d>/W`` [n, 2 n]   Zilly et al. 2017
    layernormvariantslstm   ``W_ff`` [in, 4 n], ``W_re`` [n, 4 n], ``gamma_*``, ``beta_*``    i, j, f, o: Ba et al. 2016
    ======================  ================================================================  ==========================

    The formulas and ``unit_opts`` of each unit are in `returnn_tf.ops.cells`. Case does not matter in names, and "Cell"
    at their end is ignored. Sparse input: lookup in the input weights. A name_scope replaces ``<layer>/rec``.

    Lengths: unchanged. The output is time-major, [time, batch, ..., n_out], and 0 after the end of each sequence. All
    axes of the source but the iterated one and the feature axis count as batch.

    Example::

        network = {
            "fw": {"class": "rec", "unit": "lstm", "n_out": 3, "direction": 1, "from": "data"},
            "bw": {"class": "rec", "unit": "lstm", "n_out": 3, "direction": -1, "from": "data"},
            "output": {"class": "linear", "activation": None, "n_out": 2, "from": ["fw", "bw"]}}
    """

    computes_all_steps = True
    scope_as_unit = "rec"
    unit: Union[str, Dict[str, Any]] = option(
        "lstm", help="name of the recurrent unit, or a network for one step", network=True
    )
    unit_opts: Optional[Dict[str, Any]] = option(None, help="options of the unit, see `returnn-tf units UNIT`")
    direction: Optional[int] = option(None, help="1: forward (default), -1: from the last frame to the first one")
    axis: Optional[Axis] = option(None, help="the axis to iterate over (default: time)")
    input_projection: bool = option(True, help="False: the source is the projected input, of dim 4 n_out for an LSTM")
    initial_state: Annotated[Any, Written(Union[None, str, float, Dict[str, Any]], "layer | str | dict | None")] = (
        option(
            None,
            help="state before the first frame: 'zeros' (default), 'ones', 'var' (a parameter), a layer, or a dict of "
            "these with a key for each state, e.g. {'h': ..., 'c': ...}",
            refs=True,
            keywords=INITIAL_KEYWORDS,
        )
    )
    forward_weights_init: Init = option(None, help="initialiser of the input weights (default glorot_uniform)")
    recurrent_weights_init: Init = option(None, help="initialiser of the recurrent weights (default glorot_uniform)")
    bias_init: Init = option(None, help="initialiser of the biases (default: 0, in the gates of a GRU 1)")
    back_prop: Optional[bool] = option(None, help="False: no gradient through the recurrence")
    unroll: bool = option(False, help="unroll the loop", inert="loops are never unrolled")
    max_seq_len: Union[None, str, int] = option(None, help="step network: most steps, a number or an expression")
    include_eos: Optional[bool] = option(None, help="step network: the step in which 'end' gets true counts")
    cheating: Optional[bool] = option(None, help="step network: the search always keeps the reference")
    declare_rec_time: Optional[bool] = option(None, help="step network: declares the axis of the steps")
    checkpoint_steps: Optional[bool] = option(
        None, help="step network: save memory in training: the backward pass computes each step again"
    )
    swap_memory: Optional[bool] = option(
        None, help="step network: save memory of a GPU in training: the same as checkpoint_steps, where there is a GPU"
    )
    optimize_move_layers_out: Optional[bool] = option(
        None, help="step network: compute what can be outside of the loop"
    )

    needs_sources = False
    #: Whether some unit names mean another cell than in a layer over a whole sequence.
    single_step: ClassVar[bool] = False

    #: The layers of a step network whose values of all steps are wanted, by name.
    exits: ClassVar[Dict[str, Any]] = {}
    #: See `returnn_tf.layers.rec.state.hidden_state_of`.
    hidden_state: ClassVar[HiddenState]

    @classmethod
    def takes_data(cls, options: Mapping[str, Any]) -> bool:
        """A cell needs an input, a step network may have none."""
        return isinstance(options.get("unit"), str)

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """What the layers of a step network take from outside by ``base:``."""
        if isinstance(options.get("unit"), Mapping):
            yield from base_references(options["unit"])

    @classmethod
    def varies_by_step(cls, options: Mapping[str, Any]) -> bool:
        """Only a cell does: a step network is a loop of its own, which starts again in each step."""
        return not isinstance(options.get("unit"), Mapping)

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: iterated axis first, then batch, then all others; the feature axis replaced and last."""
        if isinstance(self.unit, dict):
            self._inner: Any = ctx.depend(ctx.builder.step_network(ctx.node))
            return self._inner.output
        self._check_options(ctx)
        data = self.input_template(ctx)
        if ctx.in_step and ctx.loop_dim is None and data.time_axis is None and self.axis is None:
            return self._step_template(ctx, data)
        if data.time_axis is None and self.axis is None and ctx.loop_dim is not None:
            data, _ = frames_of(ctx, data)  # also what is the same in all steps
        self._frames = data
        self._perm, output = self._layout(ctx, data)
        out = ctx.out_feature()
        output = output.with_axis(output.rank, out, feature=True)
        # For all steps of a loop at once, the iterated axis is no time axis, as it is none in a step.
        output = output.replace(time_axis=None if output.dims[0].is_loop else 0)
        state_data = output.without_axes([0])
        self.cell = self._make_cell(ctx, data, ctx.need_static(out, "out_dim"))
        # A name_scope stands for "<layer>/rec".
        self.param_prefix = "rec/" if self.name_scope is None else ""
        self._declare_params(ctx)
        self.hidden_state = HiddenState(self.cell.state_keys, state_data)  # type: ignore[misc]
        self._initial: List[InitialState] = plan_initial_state(
            ctx, self.initial_state, self.hidden_state, self.param_prefix
        )
        self._single_step = False
        return output

    def _step_template(self, ctx: PlanContext, data: Data) -> Data:
        """One step of the cell, as a layer of a loop: the state is carried from step to step."""
        order = [i for i in range(data.rank) if i != data.feature_axis or data.sparse_dim is not None]
        self._perm = order if data.sparse_dim is not None else order + [data.rank - 1]
        if data.feature_axis not in (None, data.rank - 1):
            raise ctx.error("the feature axis of %s must be the last one in a step." % data)
        out = ctx.out_feature()
        base = data.replace(dtype="float32", sparse_dim=None, vocab=None, feature_axis=None)
        if data.sparse_dim is None:
            base = base.without_axes([data.rank - 1])
        output = base.with_axis(base.rank, out, feature=True)
        self.cell = self._make_cell(ctx, data, ctx.need_static(out, "out_dim"))
        self.param_prefix = "rec/" if self.name_scope is None else ""
        self._declare_params(ctx)
        self.hidden_state = HiddenState(self.cell.state_keys, output)  # type: ignore[misc]
        self._initial = plan_initial_state(ctx, self.initial_state, self.hidden_state, self.param_prefix)
        self._single_step = True
        for index in range(self.hidden_state.count):
            ctx.loop_state(str(index), output, lambda emit, i=index: self._first_state(emit)[i])
        return output

    def _first_state(self, ctx: EmitContext) -> Tuple[Any, ...]:
        """The state before the first step, in the layout of the output."""
        state = emit_initial_state(ctx, self._initial, self.hidden_state.data)
        if state is None:
            zeros = tf.zeros(tf.stack(ctx.shape(self.hidden_state.data)), "float32")
            return (zeros,) * self.hidden_state.count
        return state

    def initial_output_value(self, ctx: EmitContext) -> Any:
        """What ``prev:`` gives in the first step of a loop: the output part of the initial state."""
        keys = self.hidden_state.keys
        return self._first_state(ctx)[keys.index("h") if "h" in keys else 0]

    def _check_options(self, ctx: PlanContext) -> None:
        if not isinstance(self.unit, str):
            raise ctx.error("the unit must be a name such as 'lstm', not %r." % (self.unit,))
        for name in _STEP_NETWORK_OPTIONS:
            if getattr(self, name) is not None:
                raise ctx.error("the option %r is for a network as unit; with unit %r remove it." % (name, self.unit))
        if self.direction not in (None, 1, -1):
            raise ctx.error("direction must be 1 or -1, not %r." % (self.direction,))

    def _layout(self, ctx: PlanContext, data: Data) -> Tuple[List[int], Data]:
        """(Order of the source axes for the cell: iterated, batch, others, feature; the template without feature)."""
        feature = data.feature_axis
        if data.sparse_dim is None:
            ctx.need_feature(data)
        if self.axis is not None:
            axis = ctx.axis(data, self.axis)
        elif data.time_axis is None and ctx.loop_dim in data.dims:
            axis = data.dims.index(ctx.loop_dim)
        elif data.time_axis is None:
            raise ctx.error(
                "the source %s has no time axis to iterate over. Name one by the option 'axis', or use a linear layer."
                % data
            )
        else:
            axis = data.time_axis
        if axis in (feature, data.batch_axis):
            raise ctx.error(
                "cannot iterate over the %s axis of %s." % ("feature" if axis == feature else "batch", data)
            )
        if data.sparse_dim is not None:
            feature = None
        perm = [axis] + [i for i in (data.batch_axis,) if i is not None]
        perm += [i for i in range(data.rank) if i not in perm and i != feature]
        output = data.replace(dtype="float32", sparse_dim=None, vocab=None)
        if feature is None:
            return perm, output.permuted(perm)
        return perm + [feature], output.permuted(perm + [feature]).without_axes([len(perm)])

    def _make_cell(self, ctx: PlanContext, data: Data, n_out: int) -> Cell:
        assert isinstance(self.unit, str)
        dim = data.sparse_dim if data.sparse_dim is not None else ctx.need_feature(data)
        return unit_class(self.unit, where="option 'unit'", single_step=self.single_step)(
            n_out,
            ctx.need_static(dim, "the feature axis of the source"),
            sparse_input=data.sparse_dim is not None,
            unit_opts=self.unit_opts,
            input_projection=self.input_projection,
            behavior_version=ctx.behavior_version,
            where="option 'unit_opts'" if self.unit_opts else "option 'unit'",
        )

    def _declare_params(self, ctx: PlanContext) -> None:
        given = {
            "forward": self.forward_weights_init,
            "recurrent": self.recurrent_weights_init,
            "bias": self.bias_init,
            "fixed": None,
        }
        for spec in self.cell.param_specs():
            init = given[spec.kind]
            if init is None:
                init = "glorot_uniform" if spec.default is None else spec.default
            ctx.param(self.param_prefix + spec.name, spec.shape, init)

    def input_node(self, ctx: PlanContext) -> Any:
        """One node for all sources of a step network."""
        if len(self.sources) == 1 and not self.dropout and self.in_dim is None:
            return self.source
        copy = CopyLayer(dropout=self.dropout, dropout_noise_shape=self.dropout_noise_shape, in_dim=self.in_dim)
        return ctx.implicit("data", copy, self.sources)

    def param_parts(self, name: str, shape: Sequence[int], axis: int, inputs: Parts) -> Parts:
        """Return the inputs, then the state, for the rows, and the gates for the columns and the biases."""
        n, size = self.node.output.dim or 0, shape[axis]
        if len(shape) == 2 and axis == 0 and name.rpartition("/")[2] != "W_re":
            if size == total_size(inputs):
                return inputs
            if size == total_size(inputs) + n:
                return inputs + [Part("state", n)]
        return equal_parts(size, n, "gate")

    def sub_node(self, ctx: PlanContext, name: str) -> Any:
        """A layer of the step network that is an output layer: its values of all steps."""
        return self.exits.get(name) if isinstance(self.unit, dict) else None

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the input projection of all frames at once, then the loop over frames."""
        if isinstance(self.unit, dict):
            return ctx.value(self._inner)
        if self._single_step:
            return self._emit_step(ctx)
        data = self._frames
        x = transpose(with_frames(ctx, self.emit_input(ctx), self.input, data), self._perm)
        shape = [ctx.size(data.dims[axis]) for axis in self._perm]
        has_feature = data.sparse_dim is None
        batch_shape = shape[1 : len(shape) - 1 if has_feature else len(shape)]
        merge = len(batch_shape) != 1
        if merge:
            x = tf.reshape(x, tf.stack([shape[0], -1] + (shape[-1:] if has_feature else [])))
        y, state = run_cell(
            self.cell,
            {spec.name: ctx.param(self.param_prefix + spec.name) for spec in self.cell.param_specs()},
            x,
            self._lengths(ctx),
            initial_state=self._emit_initial_state(ctx, merge),
            direction=self.direction or 1,
            seed=ctx.seed("cell") if ctx.train else None,
        )
        n = self.cell.n_out
        if merge:
            y = tf.reshape(y, tf.stack([shape[0], *batch_shape, n]))
            state = tuple(tf.reshape(part, tf.stack([*batch_shape, n])) for part in state)
        if self.back_prop is False:
            y, state = tf.stop_gradient(y), tuple(tf.stop_gradient(part) for part in state)
        ctx.set_aux(self.node, HIDDEN_STATE, state)
        return y

    def _emit_step(self, ctx: EmitContext) -> Any:
        """The cell on one frame."""
        y, state = emit_step(ctx, self)
        for i, part in enumerate(state):
            ctx.set_loop_state(str(i), part)
        ctx.set_aux(self.node, HIDDEN_STATE, state)
        return y

    def before_loop(self, ctx: EmitContext) -> None:
        """What all steps of the cell share."""
        if not isinstance(self.unit, dict) and self._single_step:
            before_loop(ctx, self)

    @property
    def is_fused(self) -> bool:
        """Whether this is a cell of a loop which runs over all steps at once, as its input is known before the loop."""
        return not isinstance(self.unit, dict) and not self._single_step and self.node.output.dims[0].is_loop

    def _lengths(self, ctx: EmitContext) -> Optional[Any]:
        """Int [merged batch]; None if the iterated axis has one length for all."""
        dims = [self._frames.dims[axis] for axis in self._perm]
        if not dims[0].is_dynamic:
            return None
        lengths = ctx.lens(dims[0])
        if lengths.shape.rank == 0:
            return None
        others = dims[2:] if self.input.sparse_dim is not None else dims[2:-1]
        repeats: Any = 1
        for dim in others:
            repeats = repeats * ctx.size(dim)
        return tf.repeat(lengths, repeats) if others else lengths

    def _emit_initial_state(self, ctx: EmitContext, merge: bool) -> Optional[Tuple[Any, ...]]:
        state = emit_initial_state(ctx, self._initial, self.hidden_state.data)
        if state is None or not merge:
            return state
        return tuple(tf.reshape(part, [-1, self.cell.n_out]) for part in state)

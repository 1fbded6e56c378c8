"""`rec`: a recurrent cell over the frames of its source."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Optional, Union

from returnn_tf.config.errors import OptionError
from returnn_tf.config.option_types import Written
from returnn_tf.config.options import OptionalLayerRef, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis, Init
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.math.copy import joined_source
from returnn_tf.layers.rec.initial_state import INITIAL_KEYWORDS
from returnn_tf.layers.rec.rec_run import RecRun, StepNetworkRun, plan_cell_run
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.layers.shared.nested import base_references
from returnn_tf.tensor import Data, single_step_dim
from returnn_tf.tensor.parts import Parts

#: Options that apply only if the unit is a network for one step; RETURNN takes them for a cell, too.
_STEP_NETWORK_OPTIONS = (
    "max_seq_len",
    "max_seq_len_via",
    "include_eos",
    "cheating",
    "declare_rec_time",
    "optimize_move_layers_out",
    "checkpoint_steps",
    "reverse_stochastic_var_order",
)


@dataclasses.dataclass(frozen=True, eq=False)
class RecPlan(LayerPlan):
    """The plan of `RecLayer`.

    :param run: what it computes: a loop, one step of a cell in an enclosing loop, or a cell over frames
    """

    run: RecRun


@register_layer("rec")
class RecLayer(ConcatInputLayer, Planned[RecPlan]):
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
    cumsum                  none; the input has dim n                                         the sum of all frames
    rhn                     ``W`` [in, 2 n], ``b`` [2 n], ``rhn_cell/depth_<d>/W`` [n, 2 n]   Zilly et al. 2017
    layernormvariantslstm   ``W_ff`` [in, 4 n], ``W_re`` [n, 4 n], ``gamma_*``, ``beta_*``    i, j, f, o: Ba et al. 2016
    gla                     ``W_q``, ``W_k``, ``W_v``, ``W_r``, ``W_alpha_1``, ``W_alpha_2``,  gated linear attention:
                            ``b_alpha``, ``b_r``, ``norm/scale``, ``W_o``                     Yang et al. 2023
    lru                     ``nu_log``, ``theta_log``, ``gamma_log`` [m], ``B_*`` [in, m],    complex, diagonal:
                            ``C_*`` [m, n], ``D`` [in, n]                                     Orvieto et al. 2023
    s4d                     ``W`` [in, n], ``b`` [n], ``log_step`` [n], ``A_log_re``,         diagonal state spaces:
                            ``A_im``, ``C_re``, ``C_im`` [N / 2, n], ``D`` [n]                Gu et al. 2022
    mamba                   ``in_proj``, ``conv/W``, ``conv/b``, ``x_proj``, ``dt_proj``,     selective state spaces:
                            ``dt_bias``, ``A_log``, ``D``, ``out_proj``                       Gu & Dao 2023
    mamba2                  ``in_proj``, ``conv/W``, ``conv/b``, ``dt_bias``, ``A_log``,      state space duality:
                            ``D``, ``norm/scale``, ``out_proj``                               Dao & Gu 2024
    mlstm                   ``W`` [in, 4 n], ``b`` [4 n], ``W_gates`` [in, 2 heads],          q, k, v, o; i, f:
                            ``b_gates`` [2 heads]                                             Beck et al. 2024
    mingru                  ``W`` [in, 2 n], ``b`` [2 n]                                      u, c: Feng et al. 2024
    minlstm                 ``W`` [in, 3 n], ``b`` [3 n]                                      f, i, c: Feng et al. 2024
    deltanet                ``W`` [in, 3 n + heads], ``conv`` [4, 3 n], ``norm/scale``,       delta rule:
                            ``W_o`` [n, n]                                                    Yang et al. 2024
    rwkv6, rwkv7            ``W_r``, ``W_k``, ``W_v`` [in, n], ``W_o`` [n, n], ``mix_*``,     Peng et al. 2024, 2025
                            ``decay*``, ...
    sru                     ``W`` [in, 4 n], ``b`` [2 n], ``v_f``, ``v_r`` [n]                c, f, r: Lei et al. 2018
    slstm                   ``W`` [in, 4 n], ``W_re`` [heads, d, 4 d], ``b`` [4 n]            i, f, z, o: xLSTM, 2024
    ======================  ================================================================  ==========================

    The formulas and ``unit_opts`` of each unit are in `returnn_tf.ops.cells`. Names are case-insensitive, and "Cell"
    at their end is ignored. Sparse input: lookup in the input weights. A name_scope replaces ``<layer>/rec``.

    Lengths: unchanged. The output is time-major, [time, batch, ..., n_out], and 0 after the end of each sequence. All
    axes of the source but the iterated one and the feature axis count as batch. It is a single step, whose output has
    the axes of the source, if the source has no time axis, with axis single_step_dim, and with ``state``.

    Example::

        network = {
            "fw": {"class": "rec", "unit": "lstm", "n_out": 3, "direction": 1, "from": "data"},
            "bw": {"class": "rec", "unit": "lstm", "n_out": 3, "direction": -1, "from": "data"},
            "output": {"class": "linear", "activation": None, "n_out": 2, "from": ["fw", "bw"]}}
    """

    scope_as_unit = "rec"
    unit: Union[str, dict[str, Any]] = option(
        "lstm", help="name of the recurrent unit, or a network for one step", network=True
    )
    unit_opts: Optional[dict[str, Any]] = option(None, help="options of the unit, see `returnn-tf units UNIT`")
    direction: Optional[int] = option(None, help="1: forward (default), -1: backward, from the last frame to the first")
    axis: Optional[Axis] = option(None, help="axis to iterate over (default: time); single_step_dim: one step only")
    input_projection: bool = option(True, help="False: the source is the projected input, of dim 4 n_out for an LSTM")
    initial_state: Annotated[
        Any, Written(Union[None, str, float, dict[str, Any], list[Any]], "layer | str | dict | list | None")
    ] = option(
        None,
        help="state before the first frame: 'zeros' (default), 'ones', 'var' (a parameter), a layer, or a dict of "
        "these with a key for each state, e.g. {'h': ..., 'c': ...}",
        refs=True,
        keywords=INITIAL_KEYWORDS,
    )
    state: Annotated[Any, Written(Union[None, str, dict[str, Any]], "layer | dict | None")] = option(
        None, help="a single step from this state: a layer, or a dict with a layer for each state", refs=True
    )
    forward_weights_init: Init = option(None, help="initialiser of the input weights (default glorot_uniform)")
    recurrent_weights_init: Init = option(None, help="initialiser of the recurrent weights (default glorot_uniform)")
    bias_init: Init = option(None, help="initialiser of the biases (default: 0, in the gates of a GRU 1)")
    back_prop: Optional[bool] = option(None, help="False: no gradient through the recurrence")
    use_global_rec_step_offset: bool = option(
        False, help="count the steps of a loop on from batch to batch", unsupported="':i' counts the steps of each loop"
    )
    debug: Optional[bool] = option(None, help="print how the loop is built", inert="`returnn-tf check` shows it")
    unroll: bool = option(False, help="unroll the loop", inert="loops are never unrolled")
    max_seq_len: Union[None, str, int] = option(None, help="step network: maximum number of steps, or an expression")
    max_seq_len_via: OptionalLayerRef = option(
        None, help="step network: the same as max_seq_len, a layer with one whole number", refs=True
    )
    include_eos: Optional[bool] = option(None, help="step network: include the step in which 'end' becomes true")
    cheating: Union[bool, str, None] = option(
        None, choices=(None, False, True, "exclusive"), help="step network: the search always keeps the reference"
    )
    declare_rec_time: Optional[bool] = option(None, help="step network: declare the step axis")
    checkpoint_steps: Optional[bool] = option(
        None, help="step network: save memory in training by recomputing each step in the backward pass"
    )
    swap_memory: Optional[bool] = option(
        None, help="step network: save GPU memory in training: the same as checkpoint_steps if there is a GPU"
    )
    optimize_move_layers_out: Optional[bool] = option(
        None, help="step network: compute layers outside the loop where possible"
    )

    reverse_stochastic_var_order: Optional[bool] = option(
        None, help="step network: in a single step for a decoder, list the choices from the last to the first"
    )

    needs_sources = False
    inner_scope = "rec"
    iterates_unit = True
    has_memory = True  # of a cell, see `CellStep`
    computes_all_steps = True
    #: Whether some unit names denote a different cell than in a layer over a whole sequence.
    single_step: ClassVar[bool] = False

    @classmethod
    def takes_data(cls, options: Mapping[str, Any]) -> bool:
        """Return whether the source defaults to "data": a cell needs an input, a step network may have none."""
        return isinstance(options.get("unit"), str)

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the outer layers that the layers of a step network refer to by ``base:``."""
        if isinstance(options.get("unit"), Mapping):
            yield from base_references(options["unit"])

    @classmethod
    def param_references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the outer layers of which layers of a step network use parameters."""
        if isinstance(options.get("unit"), Mapping):
            yield from base_references(options["unit"], of_params=True)

    @classmethod
    def varies_by_step(cls, options: Mapping[str, Any]) -> bool:
        """Return whether the unit is a cell: a step network is an inner loop, restarted in each step."""
        return not isinstance(options.get("unit"), Mapping)

    def template(self, ctx: PlanContext) -> RecPlan:
        """Infer the output: iterated axis first, then batch, then all others; the feature axis replaced and last."""
        run = self._planned(ctx)
        self.node.hidden_state = None if run.cell is None else run.cell.state
        return RecPlan(run.output, run)

    def _planned(self, ctx: PlanContext) -> RecRun:
        """Plan what the unit requires: a loop, one step of a cell in an enclosing loop, or a cell over frames."""
        if isinstance(self.unit, dict):
            self._check_no_cell_options(ctx)
            run = StepNetworkRun(ctx)
            if self.n_out not in (None, run.output.dim) and not run.output.unknown:
                ctx.log_inert("n_out", "the layer 'output' of the unit gives %s" % run.output)
            return run
        self._check_options(ctx)
        return plan_cell_run(ctx, self, self.input_template(ctx))

    def state_name(self, key: str) -> str:
        """Return "state", or e.g. "state/c" for the cell state of an LSTM."""
        keys = () if self.node.hidden_state is None else self.node.hidden_state.keys
        return "state/%s" % keys[int(key)] if keys else "state"

    def gives_initial_output(self) -> bool:
        """Return whether the unit is a cell, whose initial state provides the initial output."""
        return self.node.hidden_state is not None and self.state is None

    def initial_output_value(self, ctx: EmitContext) -> Any:
        """Return the value of ``prev:`` in the first step of a loop: the output part of the initial state."""
        assert self.plan.run.cell is not None
        return self.plan.run.cell.first_output(ctx)

    def initial_output_template(self) -> Data:
        """Return the layout of `initial_output_value`."""
        assert self.plan.run.cell is not None
        return self.plan.run.cell.output

    def _check_no_cell_options(self, ctx: PlanContext) -> None:
        if self.axis is single_step_dim or self.state is not None:
            raise OptionError(
                "a network as unit can't do a single step: it runs over an axis, or to its layer 'end'. Use a "
                "subnetwork layer, or name the axis."
            )
        for name in ("initial_state", "unit_opts"):
            if getattr(self, name) is not None:
                raise OptionError("the option %r is for a cell; here it belongs to a layer in the unit." % name)
        if self.direction == -1:
            raise OptionError("direction -1 is for a cell. Reverse the source and the output instead.")

    def _check_options(self, ctx: PlanContext) -> None:
        if not isinstance(self.unit, str):
            raise OptionError("the unit must be a name such as 'lstm', not %r." % (self.unit,))
        for name in _STEP_NETWORK_OPTIONS:
            if getattr(self, name) is not None:
                ctx.log_inert(name, "it is for a network as unit, not for the cell %r" % self.unit)
        if self.direction not in (None, 1, -1):
            raise OptionError("direction must be 1 or -1, not %r." % (self.direction,))
        if self.state is not None and self.initial_state is not None:
            raise OptionError("state gives the state before this one step, so initial_state has no effect. Remove one.")

    def ignores_padding(self) -> bool:
        """Return whether it is a cell, which skips padding, or a network whose layers all run outside of the loop."""
        return isinstance(self.unit, str) or not self.node.inner

    def input_node(self, ctx: PlanContext) -> Any:
        """Return one node for all sources of a step network."""
        return joined_source(ctx, self)

    def weights_inits(self) -> tuple[Init, Init]:
        """Return the initialisers of the input weights and of the recurrent weights."""
        return self.forward_weights_init, self.recurrent_weights_init

    def param_parts(self, name: str, shape: Sequence[int], axis: int, inputs: Parts) -> Parts:
        """Return the outputs that the unit declares, with the parts of the sources in place of its input."""
        return [] if self.plan.run.cell is None else self.plan.run.cell.param_parts(name, axis, inputs)

    def channel_axes(self) -> Mapping[str, int]:
        """Return the factors of products of a cell."""
        planned = self.plan.run.cell
        if planned is None:
            return {}
        sizes = {spec.name: len(spec.shape) for spec in planned.cell.param_specs()}
        return {planned.prefix + name: sizes[name] - 1 for name in planned.cell.factors()}

    def multiplies_rounded(self, name: str) -> bool:
        """Return whether the cell does, which looks up rows of columns if its input are labels."""
        planned = self.plan.run.cell
        return planned is not None and planned.cell.multiplies_rounded and not planned.cell.sparse_input

    def kept_per_output(self) -> float:
        """Return the gates and states of a cell: its steps are computed backwards from them."""
        cell = None if self.plan.run.cell is None else self.plan.run.cell.cell
        return super().kept_per_output() if cell is None else float(cell.gates + max(len(cell.state_keys), 1))

    def feature_parts(self) -> Parts:
        """Return the parts of the output of the unit, such as its heads."""
        return [] if self.plan.run.cell is None else self.plan.run.cell.cell.output_parts()

    def sub_node(self, ctx: PlanContext, name: str) -> Any:
        """Return an output layer of the step network, or a part of it, with its values of all steps."""
        if name in self.node.exits or self.node.plan_exit is None:
            return self.node.exits.get(name)
        return self.node.plan_exit(name)

    def sub_names(self) -> Sequence[str]:
        """Return the names of the output layers of the step network."""
        return list(self.node.exits)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit what was planned."""
        return self.plan.run.emit(ctx)

    def before_loop(self, ctx: EmitContext) -> None:
        """Compute what all steps of the cell share."""
        self.plan.run.before_loop(ctx)

    @property
    def fused_cell(self) -> str:
        """Return the unit if this cell of a loop runs over all steps at once, as its input is known before the loop."""
        return str(self.unit) if self.plan.run.is_fused else ""

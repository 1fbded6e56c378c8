"""The base of all layer classes, and nodes: layers at their places in a plan.

A layer class declares its options as typed fields, infers the template of its output (`template`, no TensorFlow), and
emits its ops (`emit`). `returnn_tf.layers.math.linear` is a model to follow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Callable, ClassVar, Generic, Optional, Protocol, TypeVar, Union, cast

from returnn_tf.config.errors import AxisError, DimError, shown
from returnn_tf.config.option_types import Written
from returnn_tf.config.options import LayerRef, LayerRefs, at_least, axis_size, dropout_rate, finite, option
from returnn_tf.graph.carried_state import KeptSpec
from returnn_tf.graph.layer_plan import BatchNorm, HiddenState, LayerPlan
from returnn_tf.graph.option_types import Activation, InitialOutput, OutTypeOptions, ReusedParams, ReuseOptions
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.same_labels import SameLabels
from returnn_tf.graph.sealing import Sealable, default_factories
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.axes import resolve_axes
from returnn_tf.tensor.parts import Parts, total_size
from returnn_tf.util.html import paragraph, table


def _check_device(value: Optional[str]) -> Optional[str]:
    """Check the name of a device; TensorFlow silently takes another one if the device does not exist."""
    good = value is None or re.match(r"(?i)(/job:\w+)?(/replica:\d+)?(/task:\d+)?/?(device:)?(cpu|gpu)(:\d+)?$", value)
    return None if good else "must be 'CPU', 'GPU' or 'GPU:<number>'"


def _names_batch(data: Data, axes: Any) -> bool:
    """Return whether an option for axes names the batch axis, perhaps among others."""
    with contextlib.suppress(AxisError):
        return data.batch_axis in resolve_axes(data, axes)
    return False  # an axis of another source, or of the output


class ReadsWords(Protocol):
    """What divides the labels of a search into words of a lexicon."""

    @property
    def words(self) -> Sequence[str]:
        """Return all words of the lexicon."""

    def __call__(self, labels: Sequence[int]) -> list[tuple[str, int, int]]:
        """Return the words of a sequence with their first label, and the one past the last."""


@dataclasses.dataclass(eq=False, repr=False)
class Layer(Sealable):
    """A layer: the options that every layer has, facts that a class declares about itself, and what it computes.

    The attributes hold the options. Once the layer is planned, those that name layers hold the planned `Node`, and dims
    that another layer defined are replaced by their definition.

    The contexts that methods get, `PlanContext` and `EmitContext`, depend on this module, as they know nodes; so their
    types are named only where a class overrides a method.
    """

    # --- facts about the class, by which the rest of the compiler knows it, with the value that most classes have ---

    class_name: ClassVar[str] = ""
    #: Whether a new layer has nothing but its options: the class has neither ``__init__`` nor ``__post_init__``.
    has_only_options: ClassVar[bool] = False
    #: Whether the layer needs sources: then ``from`` is "data" by default in old configs, and required in others.
    needs_sources: ClassVar[bool] = True
    #: Whether it only connects a loop with the outside: hidden from users.
    is_connector: ClassVar[bool] = False
    #: Parameter scope where the layer is the unit of another one, such as `masked_computation`.
    scope_as_unit: ClassVar[str] = ""
    #: The options with a layer of the network around, by its name or dict -> whether "data" there is the own source.
    units: ClassVar[Mapping[str, bool]] = types.MappingProxyType({})
    #: The option with a network whose layers may be planned before this one, each by itself; "": there is none.
    inner_network: ClassVar[str] = ""
    #: The scope inside that of the layer in which its parameters are, and the output of an exported graph; a
    #: ``name_scope`` replaces both.
    inner_scope: ClassVar[str] = ""
    #: Whether the source defaults to "data" in any behavior version.
    always_takes_data: ClassVar[bool] = False
    #: Whether a network inside is a part of the network around, so that in a loop ``prev:`` in it refers to its layers.
    steps_with_loop: ClassVar[bool] = False
    #: Whether the hidden state of its only source is its own too, as for a copy.
    forwards_state: ClassVar[bool] = False
    #: Whether a network as its ``unit`` is computed step by step; a search may do other steps than training.
    iterates_unit: ClassVar[bool] = False
    #: Whether the output has no hypotheses of a search, even if a source has them.
    ends_search: ClassVar[bool] = False
    #: Whether in a step of a loop the value is about the hypotheses of the search, so that it exists in a search alone.
    is_about_search: ClassVar[bool] = False
    #: Whether the state that this layer carries from step to step of a loop grows in each step.
    history_grows: ClassVar[bool] = False
    #: Whether the value depends on previous steps of a loop, even where the sources do not. Only such a class may call
    #: `PlanContext.loop_state`.
    has_memory: ClassVar[bool] = False
    #: Whether the output has the numbers of the source, in another shape.
    only_reshapes: ClassVar[bool] = False
    #: Whether it computes attention weights that are exposed only through `emit_weights`.
    has_inner_weights: ClassVar[bool] = False
    #: Of a layer with a memory: whether it can also compute all steps at once, along `PlanContext.loop_dim`.
    computes_all_steps: ClassVar[bool] = False
    #: Whether the output has as many features as the (first) source.
    keeps_features: ClassVar[bool] = False
    #: Whether the output features are the concatenated source features, if the sizes add up.
    joins_features: ClassVar[bool] = False
    #: Whether the values are a distribution over the features, whatever the activation is.
    normalizes_features: ClassVar[bool] = False
    #: Whether a layer of this class that has a target usually has a loss on it: it makes new features out of its input.
    is_for_loss: ClassVar[bool] = False
    #: Whether only the sizes and lengths of the sources matter, not their values.
    reads_only_lengths: ClassVar[bool] = False
    #: Whether it changes one of its parameters, or the variable of another layer, whenever it is computed in training.
    changes_variables: ClassVar[bool] = False
    #: Whether the layer passes values on after each step of a task, see `returnn_tf.graph.after_step.sinks`.
    has_sink: ClassVar[bool] = False
    #: Whether the layer has a loss on the gradient at its output, see `returnn_tf.graph.after_step.meta_loss`.
    has_meta_loss: ClassVar[bool] = False
    #: Whether the values are a derivative, so that the gradient of a loss on them differentiates a gradient.
    is_derivative: ClassVar[bool] = False
    #: Whether the layer gets values and parameters in the type of the setting mixed_precision, if there is one.
    reduces_precision: ClassVar[bool] = False
    #: Whether the layer is a batch normalisation itself, so that the option ``batch_norm`` adds none.
    normalizes_batch: ClassVar[bool] = False
    #: Whether the sources may be complex numbers; a class that has parameters refuses them in any case.
    takes_complex: ClassVar[bool] = True
    #: Whether sources without labels may be integers or bools; None: if the class has no parameters.
    takes_ints: ClassVar[Optional[bool]] = None
    #: Whether it gives the label of each step of a loop: that of the target, in a search those of the hypotheses.
    chooses_labels: ClassVar[bool] = False
    #: Whether in a step of a loop it takes one frame of a source outside, so that the loop can run over these frames.
    unstacks_frames: ClassVar[bool] = False
    #: Whether it needs the hidden states of its sources rather than their values.
    takes_hidden_state: ClassVar[bool] = False
    #: Whether the initial output "apply(0)" in a loop is the one that it has anyway: what is inside, on zeros.
    starts_on_zeros: ClassVar[bool] = False
    #: Whether the values are attention weights over the last axis; see `in_log_space`.
    gives_attention_weights: ClassVar[bool] = False
    #: Whether it computes with the values of its sources, entry by entry, so that labels become others.
    computes_entries: ClassVar[bool] = False
    #: The option that sets the number of hypotheses of a search, if the layer creates any.
    beam_size_option: ClassVar[str] = ""

    # --- facts about one layer: options of some classes, or found while it is planned; without annotations, which would
    # make them fields of the dataclass, so that a class could not take them from another base ---

    #: Of a connector whose value does not come from its first source: the layer it comes from, or its name.
    of = cast("Union[None, str, Node]", None)
    #: Name or function of the activation that gives the output, if there is one.
    activation = cast(Activation, None)
    #: The values to load into the parameters below this layer, see `returnn_tf.engine.checkpoints.preload`.
    load_on_init = cast(Any, None)
    #: For each source: None, or what follows its name in the tuple that ``from`` has in place of a name.
    source_options = cast(Sequence[Any], ())
    #: This layer in the plan; set by the node.
    node: Node = dataclasses.field(init=False)

    # --- options ---

    n_out: Optional[int] = option(None, check=axis_size, help="size of the new feature axis; from the target if absent")
    out_dim: Optional[Dim] = option(None, help="the new feature dim, instead of n_out")
    out_type: Optional[dict[str, Any]] = option(None, help="changes to the output template", group=OutTypeOptions)
    out_shape: Union[None, set[Any], frozenset[Any], list[Any], dict[Any, Any]] = option(
        None, help="set of dims that the output must have, in a loop those of one step; checked"
    )
    target: Union[None, str, list[str]] = option(
        None, help="data key or layer with the reference for the loss; the default of n_out"
    )
    loss: Optional[str] = option(None, help="name of the loss on this layer")
    loss_scale: Optional[float] = option(
        1.0, help="weight of the loss in the objective; 0: only reported; None: 1", check=finite, needs="loss"
    )
    loss_opts: Optional[dict[str, Any]] = option(None, help="options of the loss")
    loss_only_on_non_search: Optional[bool] = option(None, help="omit the loss in search", needs="loss")
    copy_output_loss_from_source_idx: Optional[int] = option(
        None, help="index of the source whose auxiliary loss is forwarded to the loss 'via_layer'"
    )
    only_on_eval: bool = option(
        False,
        help="build this layer only where losses are computed",
        inert="losses are computed in training and evaluation alike, and other passes build only what they need",
    )
    only_on_search: bool = option(False, help="build this layer only in search, if nothing else needs it")
    is_output_layer: Optional[bool] = option(None, help="build the layer even if nothing needs it; part of the results")
    trainable: Optional[bool] = option(None, help="whether the optimizer updates the parameters (default True)")
    L2: Optional[float] = option(
        None, check=at_least(0), help="L2 constraint: weight of the sum of squares of all parameters"
    )
    darc1: Optional[float] = option(
        None, check=at_least(0), help="weight of the DARC1 regulariser (Kawaguchi et al. 2017)"
    )
    spatial_smoothing: float = option(
        0.0, check=at_least(0), help="weight of the penalty on high frequencies in the features viewed as an image"
    )
    param_dropout: Optional[float] = option(None, check=dropout_rate, help="dropout on the parameters in training")
    param_dropout_min_ndim: Optional[int] = option(
        None, help="apply param_dropout only to parameters of at least this rank", needs="param_dropout"
    )
    param_variational_noise: Optional[float] = option(
        None, check=at_least(0), help="stddev of Gaussian noise on the parameters in training"
    )
    param_device: Optional[str] = option(
        None, check=_check_device, help="device for the parameters, e.g. 'CPU' or 'GPU:0'"
    )
    updater_opts: Optional[dict[str, Any]] = option(None, help="options of the updater for these parameters")
    reuse_params: ReusedParams = option(
        None,
        group=ReuseOptions,
        help="layer whose parameters to use, or a dict. A recurrent layer whose unit is a network uses those of all "
        "layers inside",
    )
    name_scope: Optional[str] = option(
        None, help="scope of the parameters instead of the layer name; '/abs', 'rel' or ''"
    )
    batch_norm: Union[None, bool, dict[str, Any]] = option(
        None, help="True or options of batch_norm: normalise the output after the activation"
    )
    size_target: Optional[str] = option(None, help="take the sequence lengths of this data key")
    register_as_extern_data: Optional[str] = option(None, help="register the output as this data key")
    control_dependencies_on_output: Annotated[
        Any, Written(Union[None, str, list[str], Callable[..., Any]], "layer | list[layer] | function | None")
    ] = option(
        None, help="layers to run before the output is used, or a function of the output that gives ops", refs=True
    )
    extra_deps: Optional[LayerRefs] = option(None, help="layers to build and compute as well", refs=True)
    initial_output: InitialOutput = option(None, help="in a loop: the value of prev: in the first step")
    need_last: bool = option(False, help="in a loop: keep the value of the last step")
    rec_previous_layer: Optional[LayerRef] = option(
        None, help="in a loop: the layer whose previous step to use", unsupported="write 'prev:<layer>' in 'from'"
    )
    collocate_with: Optional[LayerRefs] = option(
        None, help="layers on whose device this one is computed", inert="TensorFlow places ops where their inputs are"
    )
    encapsulate: bool = option(
        False, help="plan all layers inside of a network together", inert="each is planned where it is needed"
    )
    debug_print_layer_output: Optional[bool] = option(
        None, help="print shape and values of the output to stderr whenever it is computed"
    )
    custom_param_importer: Union[None, str, Callable[..., Any]] = option(
        None,
        help="how parameters are taken over from the network before",
        unsupported="'#copy_param_mode' in the network says it for all layers; 'load_on_init' of a subnetwork, and the "
        "setting preload_from_files, load them from checkpoints",
    )
    state: object = option(
        None, help="in a loop: explicit state", unsupported="give 'initial_state' to the recurrent layer"
    )

    # --- what a class computes ---

    def template(self, ctx: Any) -> Union[Data, LayerPlan]:
        """Infer the template of the output, and declare the parameters. No TensorFlow.

        :param ctx: the `PlanContext`
        :return: the template; or a record with what else was found, which the other methods get as `plan`
        :raises ConfigError: by ``ctx.error``, if the sources or options are invalid
        """
        raise AssertionError("%s has no template()" % type(self).__name__)

    def emit(self, ctx: Any) -> Any:
        """Emit the ops. The value has the dims and the axis order of the template.

        :param ctx: the `EmitContext`
        """
        raise AssertionError("%s has no emit()" % type(self).__name__)

    def before_loop(self, ctx: Any) -> None:
        """Compute what all steps share, for a layer in a loop, and store it by ``ctx.set_aux``. May do nothing.

        :param ctx: the `EmitContext`
        """

    def weights_template(self) -> Data:
        """Return the template of the attention weights inside, with the keys as the last axis and the queries as time.

        :raises ConfigError: why they can't be given out
        """
        raise DimError("it computes none inside")

    def emit_weights(self, ctx: Any) -> Any:
        """Emit the attention weights inside, before dropout, once more; see `returnn_tf.compiler.inner_weights`.

        :param ctx: the `EmitContext`
        """
        raise AssertionError("%s has no emit_weights()" % type(self).__name__)

    # --- the layer in the plan ---

    @property
    def plan(self) -> LayerPlan:
        """The plan of `template`."""
        return self.node.plan

    @property
    def sources(self) -> list[Node]:
        """Return the layers that ``from`` names."""
        return self.node.sources

    @property
    def source(self) -> Node:
        """Return the first source."""
        return self.node.sources[0]

    @property
    def target_names(self) -> list[str]:
        """Return the option ``target`` as a list of names; a choice with several sources has several."""
        return [self.target] if isinstance(self.target, str) else list(self.target or ())

    @property
    def decides(self) -> bool:
        """Return whether it chooses one hypothesis of each sequence, and knows the score.

        See `returnn_tf.layers.search.decide`.
        """
        return False

    def network_inputs(self, ctx: Any) -> dict[str, Node]:
        """Return the inputs of the network in the option `inner_network`, by data key.

        :param ctx: the `PlanContext`
        """
        return {}

    def sub_node(self, ctx: Any, name: str) -> Optional[Node]:
        """Return the layer that is reached as ``<this layer>/<name>``, or None.

        :param ctx: the `PlanContext`
        """
        return None

    def sub_names(self) -> Sequence[str]:
        """Return the names of all further outputs, for error messages."""
        return tuple(self.node.sub_outputs)

    # --- what a class says about its options, before a layer is made ---

    @classmethod
    def with_defaults(cls) -> Any:
        """Return a layer with the defaults of all options."""
        if not cls.has_only_options:
            return cls()
        layer = cls.__new__(cls)
        # mypy takes a class with fields for unhashable
        vars(layer).update((name, make()) for name, make in default_factories(cls))  # type: ignore[arg-type]
        return layer

    @classmethod
    def takes_data(cls, options: Mapping[str, Any]) -> bool:
        """Return whether the source defaults to "data" where ``from`` is omitted, which only old configs may do."""
        return cls.needs_sources

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the layer names that this layer needs besides ``from`` and the options declared with ``refs``.

        :param options: the dict of the config
        """
        return iter(())

    @classmethod
    def param_references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the layers of which layers inside this one use parameters.

        :param options: the dict of the config
        """
        return iter(())

    @classmethod
    def follows_target(cls, options: Mapping[str, Any], search: bool) -> bool:
        """Return whether this layer ignores its sources in a loop and outputs the target, like `choice` in training."""
        return False

    @classmethod
    def only_in_step(cls) -> bool:
        """Return whether a layer of this class must run step by step in a loop, even if no dependency requires it."""
        return cls.has_memory and not cls.computes_all_steps

    @classmethod
    def varies_by_step(cls, options: Mapping[str, Any]) -> bool:
        """Return whether the value varies from step to step of a loop even where the sources do not.

        :param options: the dict of the config
        """
        return cls.has_memory

    @classmethod
    def references_to_one_step(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return those of the names that may not have a value for each step, so that in a loop each step has its own.

        :param options: the dict of the config
        """
        return iter(())

    @classmethod
    def source_list(cls, given: Any) -> list[Any]:
        """Return ``from`` as a list of names."""
        if given is None:
            return []
        return [given] if isinstance(given, str) else list(given)

    @classmethod
    def read_sources(cls, given: Any, where: str) -> list[Any]:
        """Return ``from`` as a list of names, or of tuples that begin with a name.

        :param where: how an error begins
        :raises ConfigError: neither a name nor a list of names
        """
        if given is not None and not isinstance(given, (str, list, tuple, dict)):
            raise DimError("%s: 'from' must be the name of a layer or a list of names, got %s." % (where, shown(given)))
        sources = cls.source_list(given)
        for source in sources:
            name = source[0] if isinstance(source, tuple) and source else source
            if not isinstance(name, str):
                raise DimError("%s: 'from' must hold names of layers, got %s." % (where, shown(source)))
        return sources

    # --- what a planned layer says about itself ---

    def param_parts(self, name: str, shape: Sequence[int], axis: int, inputs: Parts) -> Parts:
        """Return the parts of one axis of a parameter, or an empty list if they are unknown.

        A parameter that grows, as in pretraining, grows in each of its parts. By default an axis whose size equals the
        input is the input axis, except the last axis of a matrix, which is the output axis.

        :param name: of the parameter, relative to the scope of the layer
        :param inputs: the parts of the features of all sources
        """
        is_output = len(shape) > 1 and axis == len(shape) - 1
        return inputs if not is_output and shape[axis] == total_size(inputs) else []

    def feature_parts(self) -> Parts:
        """Return the parts of the feature axis of the output, which grow one by one, or an empty list: it is one."""
        return []

    def works_by_frame(self) -> bool:
        """Return whether a frame of the output depends on this frame of the sources alone.

        Then the layer is also given packed frames in training: [1, frames, features] for [batch, time, features].
        """
        return False

    def ignores_padding(self) -> bool:
        """Return whether frames before the end of a sequence depend on such frames of the sources alone."""
        return self.works_by_frame()

    def mixes_sequences(self) -> bool:
        """Return whether what is computed for a sequence may depend on the other sequences of the batch."""
        if self.node.batch_norm is not None:
            return True
        batched = [source.output for source in self.node.sources if source.output.batch_axis is not None]
        if batched and self.node.output.batch_axis is None and not self.reads_only_lengths:
            return True
        named = (getattr(self, name, None) for name in ("axis", "axes"))
        return not self.only_reshapes and any(_names_batch(data, axes) for data in batched for axes in named)

    def alters_output(self) -> bool:
        """Return whether what `emit` returns is changed or looked at by an option that every layer has."""
        looked_at = self.control_dependencies_on_output or self.debug_print_layer_output
        return bool(self.batch_norm or looked_at) or self.node.own_output is not None

    def masks_padding(self) -> bool:
        """Return whether the values are weights of frames, which are 0 after the end of a sequence."""
        return False

    def work_per_frame(self) -> int:
        """Return the multiply-adds of products for a frame, of a layer that works by frame."""
        return 0

    def gradient_reads_sources(self) -> bool:
        """Return whether the backward pass needs the values of the sources, as that of a sum does not."""
        return not self.only_reshapes

    def gradient_reads_output(self) -> bool:
        """Return whether the backward pass needs the output, or what it is computed from."""
        return not self.only_reshapes

    def kept_per_output(self) -> float:
        """Return how many numbers are kept for the backward pass, for each number of an output that it reads."""
        return 1.0

    def same_labels(self) -> Iterator[SameLabels]:
        """Return the axes that have the same labels by the formula of the layer, once it is planned."""
        return iter(())

    def gives_initial_output(self) -> bool:
        """Return whether `initial_output_value` defines the value before the first step of a loop."""
        return False

    def initial_output_value(self, ctx: Any) -> Any:
        """Emit the value before the first step of a loop, of a layer that gives one.

        :param ctx: the `EmitContext`
        """
        raise AssertionError("%s has no initial_output_value()" % type(self).__name__)

    def initial_output_template(self) -> Data:
        """Return the layout of `initial_output_value`: that of the output in one step."""
        output = self.node.output
        return output.without_axes(output.loop_axes)

    def state_name(self, key: str) -> str:
        """Return the name that graphs for decoders give to a state, which is carried from step to step of a loop."""
        return key

    def carries_history(self) -> bool:
        """Return whether a layer with a history that grows in a loop carries it on from block to block of frames."""
        return bool(self.node.kept)

    @property
    def initializer(self) -> Any:
        """Return the initialiser of a variable with the value of this layer; None if the value is no constant."""
        return None

    @property
    def history(self) -> Optional[Dim]:
        """The dim of the steps so far, of a layer whose output has it."""
        return None

    @property
    def followed_dims(self) -> Sequence[Dim]:
        """Return, of a choice that gives the labels of the target, the dims of the target, as long as the loop."""
        return ()

    def true_labels(self, labels: Node) -> Optional[frozenset[int]]:
        """Return the labels for which the output, a bool, is true; None if something else decides.

        :param labels: the labels, [batch], whose values the output may be computed from
        """
        return None

    @property
    def needs_last_step(self) -> bool:
        """Return whether the value in the last step of a loop is another one than if more steps followed."""
        return False

    def word_reader(self, scales: Mapping[str, float] = types.MappingProxyType({})) -> Optional[ReadsWords]:
        """Return what divides the labels of a search into words, if the layer gives scores of words to this search.

        :param scales: what the search had in place of options, by name
        """
        return None

    def factors(self) -> Mapping[str, bool]:
        """Return the matrices by which a step multiplies its input, [batch, features], and whether each is transposed.

        A search keeps these in an order that suits products with few rows, see `returnn_tf.loops.packed`.
        """
        return {}

    def channel_axes(self) -> Mapping[str, int]:
        """Return the factors of products, and tables of rows of labels, which may be stored as smaller numbers.

        :return: parameter -> the axis of its channels: the features of a product, or the labels whose rows are read; of
            more than two axes it is the last one, and the others are the depth
        """
        return {name: 0 if transposed else 1 for name, transposed in self.factors().items()}

    def multiplies_rounded(self, name: str) -> bool:
        """Return whether one of `channel_axes` is read by `EmitContext.rounded_matrix`; else it is read as floats."""
        return True

    def differentiates_by(self) -> Sequence[Node]:
        """Return the layers by whose values this one may take a derivative; later ops then really start from these."""
        return ()

    @property
    def searches(self) -> bool:
        """Return whether it creates hypotheses, of a layer that chooses labels; once it is planned."""
        return False

    @property
    def fused_cell(self) -> str:
        """Return the recurrent unit that computes all steps of a loop at once, or ""; once it is planned."""
        return ""

    @property
    def in_log_space(self) -> bool:
        """Return whether attention weights are given as their logarithms."""
        return False

    def remark(self) -> str:
        """Return a warning of a probable mistake that does not prevent the computation, once it is planned, or ""."""
        return ""

    def _refusal(self, name: str) -> str:
        return (
            "%s: %r cannot be set. A layer is its options and does not change while the network is planned or later. "
            "Return what template() finds as a LayerPlan, which the other methods get as self.plan. What is made while "
            "ops are emitted belongs to the context, see EmitContext.set_aux." % (self._sealed, name)
        )


P = TypeVar("P", bound=LayerPlan)


class Planned(Layer, Generic[P]):
    """A layer whose `template` returns a record of the type P."""

    @property
    def plan(self) -> P:
        """The plan of `template`."""
        return cast(P, super().plan)


AxisOption = Union[Dim, str, int]
AxesOption = Union[Dim, str, int, list[Any], tuple[Any, ...], set[Any]]


@dataclasses.dataclass(eq=False, init=False)
class Node(Sealable):
    """One layer of a plan. Once it is planned, neither the node nor its layer changes.

    :param path: full path, e.g. "encoder/lstm0"; "data:<key>" for inputs
    :param layer: options, template inference and emission
    :param scope: the scope of its parameters
    :param sources: the nodes in ``from``
    :param deps: all nodes it needs: sources, layers named in options, inner layers
    :param param_deps: nodes of which it needs only parameters, see `returnn_tf.graph.params.reuse`
    :param output: the template; set when the node is planned
    :param found: what the layer found when it was planned; None before, and the output alone while a loop guesses it
    :param input: the sources side by side, if the layer joins them
    :param sub_outputs: templates of further outputs by name, which configs reach as ``path/name``
    :param params: own and shared parameters by their name in the layer
    :param owned: the parameters that this layer creates
    :param extern_key: for inputs: the data key
    :param in_search: whether its network searches
    """

    path: str
    layer: Layer
    scope: str
    sources: list[Node] = dataclasses.field(default_factory=list)
    deps: list[Node] = dataclasses.field(default_factory=list)
    _output: Optional[Data] = None
    found: Optional[LayerPlan] = None
    input: Optional[Data] = None
    #: The template in which the layer emits its value, where the output has declared dims instead of inferred ones.
    own_output: Optional[Data] = None
    #: Inferred dims -> the declared ones that replace them, see `returnn_tf.tensor.dim_binding`.
    replaced_dims: dict[Dim, Dim] = dataclasses.field(default_factory=dict)
    sub_outputs: dict[str, Data] = dataclasses.field(default_factory=dict)
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    owned: list[ParamSpec] = dataclasses.field(default_factory=list)
    extern_key: Optional[str] = None
    in_search: bool = False
    #: In a loop: state -> (template, function returning the initial value); see `PlanContext.loop_state`.
    loop_states: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: State -> what is kept of it from batch to batch, see `PlanContext.keep`.
    kept: dict[str, KeptSpec] = dataclasses.field(default_factory=dict)
    #: The plans of further outputs, by their names.
    sub_plans: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: The layer whose output this one passes on, such as the layer "output" of a subnetwork.
    passes_on: Optional[Node] = None
    #: The state after the last frame that other layers may ask for.
    hidden_state: Optional[HiddenState] = None
    #: Of the value of a layer of a loop as seen from outside: plans a layer with its state after the last step.
    plan_state: Optional[Callable[[], Node]] = None
    #: Of a step network: the layers whose values are wanted for all steps, by name.
    exits: dict[str, Node] = dataclasses.field(default_factory=dict)
    #: Of a step network: plans a part of such a layer for all steps, by its path, or returns None.
    plan_exit: Optional[Callable[[str], Optional[Node]]] = None
    #: The batch normalisation that the layer is, or that the option ``batch_norm`` asks for.
    batch_norm: Optional[BatchNorm] = None
    #: Of a layer with a history in a loop: the masks that select the steps in it, see `masked_computation`.
    history_masks: list[Node] = dataclasses.field(default_factory=list)
    #: Of a loop: the layers of one step, in order.
    inner: list[Node] = dataclasses.field(default_factory=list)
    param_deps: list[Node] = dataclasses.field(default_factory=list)

    def __init__(self, path: str, layer: Layer, scope: str, *, extern_key: Optional[str] = None) -> None:
        vars(self).update((name, make()) for name, make in default_factories(Node))
        vars(self).update(path=path, layer=layer, scope=scope, extern_key=extern_key)
        layer.node = self

    def seal(self, place: str = "") -> None:
        """Forbid all further changes of the node, its layer and its parameters."""
        values = vars(self)
        for name, kind in default_factories(Node):
            values[name] = tuple(values[name]) if kind is list else types.MappingProxyType(values[name])
        self.seal_layer()
        for spec in self.owned:
            spec.seal("Parameter %r" % spec.name)
        super().seal(place or "Layer %r" % self.path)

    def seal_layer(self) -> None:
        """Forbid to change the layer, whose options are set."""
        self.layer.seal("Layer %r (class %r)" % (self.path, self.layer.class_name))

    @property
    def output(self) -> Data:
        """Return the template of the output."""
        assert self._output is not None, "layer %s is not planned yet" % self.path
        return self._output

    @output.setter
    def output(self, value: Data) -> None:
        self._output = value

    @property
    def plan(self) -> LayerPlan:
        """The result of `template`."""
        assert self.found is not None, "layer %s is not planned yet" % self.path
        return self.found

    @property
    def planned(self) -> bool:
        """Return whether the template is known."""
        return self._output is not None

    def depend(self, node: Node) -> None:
        """Add a node that must be emitted before this one."""
        if node not in self.deps:
            self.deps.append(node)

    def all_deps(self) -> set[Node]:
        """Return the nodes that it needs, directly or through others."""
        found: set[Node] = set()
        todo = list(self.deps)
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo += node.deps
        return found

    def __repr__(self) -> str:
        return "<%s %r>" % (type(self).__name__, self.path)

    def _repr_html_(self) -> str:
        title = "%s (%s)" % (self.path, "data" if self.extern_key is not None else self.layer.class_name)
        sources = [("from", ", ".join(source.path for source in self.sources))] if self.sources else []
        params = [("parameter %s" % spec.name, "%s %s" % (list(spec.shape), spec.dtype)) for spec in self.owned]
        rows = [("output", self.output if self.planned else "not planned yet"), *sources, *params]
        return paragraph(title) + table((), rows)

"""What the compiler knows about a layer: the facts about its class, and the options that every layer has.

Nodes and contexts depend on this class; `returnn_tf.graph.layer.Layer`, the base of all layer classes, depends on them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Callable,
    NamedTuple,
    Optional,
    Union,
)

from returnn_tf.config.errors import ConfigError, shown
from returnn_tf.config.option_types import Written
from returnn_tf.config.options import LayerRef, LayerRefs, at_least, axis_size, dropout_rate, finite, option
from returnn_tf.graph.layer_facts import LayerFacts
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import InitialOutput, OutTypeOptions, ReusedParams, ReuseOptions
from returnn_tf.graph.sealing import default_factories
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.parts import Parts, total_size


def _check_device(value: Optional[str]) -> Optional[str]:
    """Check the name of a device; TensorFlow silently takes another one if the device does not exist."""
    good = value is None or re.match(r"(?i)(/job:\w+)?(/replica:\d+)?(/task:\d+)?/?(device:)?(cpu|gpu)(:\d+)?$", value)
    return None if good else "must be 'CPU', 'GPU' or 'GPU:<number>'"


class SameLabels(NamedTuple):
    """Two axes of labels, in which an index means the same; if one has more labels, they are at its end.

    :param blank: the index of the blank of CTC or of a transducer in ``one``, if a layer or loss knows it
    """

    one: Dim
    other: Dim
    blank: Optional[int] = None


def same_labels(one: Data, other: Data, blank: Optional[int] = None) -> Iterator[SameLabels]:
    """Yield that scores of labels, or labels, and other ones have the same labels; nothing if one has no labels.

    :param blank: index in ``one``; negative: from its end
    """
    dims = [data.feature_dim if data.sparse_dim is None else data.sparse_dim for data in (one, other)]
    if dims[0] is not None and dims[1] is not None and dims[0].size is not None:
        yield SameLabels(dims[0], dims[1], None if blank is None else blank % dims[0].size)


@dataclasses.dataclass(eq=False, repr=False)
class LayerBase(LayerFacts):
    """The options of every layer, and the methods that a class may override to say more about itself.

    The attributes hold the options. Once the layer is planned, those that name layers hold the planned `Node`, and dims
    that another layer defined are replaced by their definition.
    """

    #: The `Node` of this layer in the plan; set by the node.
    node: Any = dataclasses.field(init=False)
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
    state: object = option(
        None, help="in a loop: explicit state", unsupported="give 'initial_state' to the recurrent layer"
    )

    def _refusal(self, name: str) -> str:
        return (
            "%s: %r cannot be set. A layer is its options and does not change while the network is planned or later. "
            "Return what template() finds as a LayerPlan, which the other methods get as self.plan. What is made while "
            "ops are emitted belongs to the context, see EmitContext.set_aux." % (self._sealed, name)
        )

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
            raise ConfigError(
                "%s: 'from' must be the name of a layer or a list of names, got %s." % (where, shown(given))
            )
        sources = cls.source_list(given)
        for source in sources:
            name = source[0] if isinstance(source, tuple) and source else source
            if not isinstance(name, str):
                raise ConfigError("%s: 'from' must hold names of layers, got %s." % (where, shown(source)))
        return sources

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

    def masks_padding(self) -> bool:
        """Return whether the values are weights of frames, which are 0 after the end of a sequence."""
        return False

    def work_per_frame(self) -> int:
        """Return the multiply-adds of products for a frame, of a layer that works by frame."""
        return 0

    def same_labels(self) -> Iterator[SameLabels]:
        """Return which axes have the same labels, by what the layer computes; once it is planned."""
        return iter(())

    def gives_initial_output(self) -> bool:
        """Return whether a method ``initial_output_value`` defines the value before the first step of a loop."""
        return hasattr(self, "initial_output_value")

    def initial_output_template(self) -> Data:
        """Return the layout of ``initial_output_value``: that of the output in one step."""
        output: Data = self.node.output
        return output.without_axes(output.loop_axes)

    def state_name(self, key: str) -> str:
        """Return the name that graphs for decoders give to a state, which is carried from step to step of a loop."""
        return key

    def carries_history(self) -> bool:
        """Return whether a layer with a history that grows in a loop carries it on from block to block of frames."""
        return bool(self.node.kept)

    @property
    def initializer(self) -> Any:
        """Return what initialises a variable with the value of this layer; None if the value is no constant."""
        return None

    # --- methods that `returnn_tf.graph.layer.Layer` declares with their types ---

    @property
    def plan(self) -> LayerPlan:
        """What `template` found."""
        found: LayerPlan = self.node.plan
        return found

    def template(self, ctx: Any) -> Union[Data, LayerPlan]:
        """Infer the template of the output."""
        raise AssertionError("%s has no template()" % type(self).__name__)

    def emit(self, ctx: Any) -> Any:
        """Emit the ops."""
        raise AssertionError("%s has no emit()" % type(self).__name__)

    def weights_template(self) -> Data:
        """Return the template of the attention weights inside, with the keys as the last axis and the queries as time.

        :raises ConfigError: why they can't be given out
        """
        raise ConfigError("it computes none inside")

    def emit_weights(self, ctx: Any) -> Any:
        """Emit the attention weights inside, before dropout, once more; see `returnn_tf.compiler.inner_weights`."""
        raise AssertionError("%s has no emit_weights()" % type(self).__name__)

    def remark(self) -> str:
        """Return what is probably wrong although it can be computed, once it is planned; "" if nothing is."""
        return ""

    def true_labels(self, labels: Any) -> Optional[frozenset[int]]:
        """Return the labels for which the output, a bool, is true; None if something else decides.

        :param labels: the `Node` with the labels, [batch], whose values the output may be computed from
        """
        return None

    def before_loop(self, ctx: Any) -> None:
        """Compute what all steps of a loop share."""

    def sub_node(self, ctx: Any, name: str) -> Any:
        """Return the layer that is reached as ``<this layer>/<name>``, or None."""
        return None

    def sub_names(self) -> Sequence[str]:
        """Return the names of all further outputs."""
        return ()

    @property
    def target_names(self) -> list[str]:
        """Return the option ``target`` as a list of names; a choice with several sources has several."""
        return [self.target] if isinstance(self.target, str) else list(self.target or ())

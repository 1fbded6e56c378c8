"""`Network`: a planned network with its variables, and `run`, which evaluates it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Callable, Optional, Union, overload

import numpy as np
from numpy.typing import NDArray

from returnn_tf.compiler.feed import FeedFormat
from returnn_tf.compiler.feed_function import FeedFunction
from returnn_tf.compiler.for_xla import prepare_for_xla
from returnn_tf.compiler.initial_values import InitialValues
from returnn_tf.compiler.kept_states import KeptStates
from returnn_tf.compiler.lower import Lowered, lower, needed_extern_keys, needs_second_derivatives
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.compiler.planning.plan import Plan
from returnn_tf.compiler.result import RunResult, layer_result
from returnn_tf.config import Config
from returnn_tf.config.errors import DimError, did_you_mean
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.config.settings.training import DEFAULT_SEED, TrainingSettings
from returnn_tf.config.user_code import using_config
from returnn_tf.graph import check_numerics
from returnn_tf.graph.after_step.sinks import OpenSinks
from returnn_tf.graph.carried_state import CarriedState, KeptSpec
from returnn_tf.graph.fine_tuning import without_fine_tuning
from returnn_tf.graph.layer import Node
from returnn_tf.graph.param_spec import ParamSpec
from returnn_tf.graph.quantization import refusal_to_train
from returnn_tf.graph.rounded_variable import check_values
from returnn_tf.layers.search.decide import scores_of
from returnn_tf.logging.log import log
from returnn_tf.ops.gradients import derivatives
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

log.attach()


class _PlanAttribute:
    """``Network.plan(config)`` plans a config without variables; ``net.plan`` is the plan of a network."""

    @overload
    def __get__(self, net: None, owner: type[Network]) -> Callable[..., Plan]: ...

    @overload
    def __get__(self, net: Network, owner: type[Network]) -> Plan: ...

    def __get__(self, net: Optional[Network], owner: type[Network]) -> Any:
        return plan_from_config if net is None else vars(net)["plan"]

    def __set__(self, net: Network, plan: Plan) -> None:
        raise AttributeError("the plan of a network can't change; make another Network")


class Network:
    """A network with its variables.

    :param plan: see `plan_from_config`, which is ``Network.plan``
    :param config: that of the plan; functions of it ask for it, and it has the settings of how the network is run
    :param seed: seed of the initial values
    """

    plan = _PlanAttribute()

    def __init__(self, plan: Plan, config: Config, *, seed: int = DEFAULT_SEED) -> None:
        vars(self)["plan"] = plan
        #: The settings in use, which functions of the config ask for: those given, or of a later epoch.
        self.config = config
        self.train = plan.train
        self.search = plan.search
        self.seed = seed
        self.noise_seed = seed  # for dropout and the like; different in each process of a distributed training
        if self.jit_compile:
            prepare_for_xla(config)
        initial = InitialValues(plan, config, seed)
        #: The parameters that checkpoints hold.
        #: A parameter that the setting ``quantize`` rounds is a `RoundedVariable`, the others are `tf.Variable`s.
        self.stored_params: dict[str, Any] = {name: initial.variable(spec) for name, spec in plan.params.items()}
        self.kept = KeptStates(plan.kept)
        #: All parameters: those above, and states that layers keep from batch to batch.
        self.params: dict[str, Any] = {**self.stored_params, **self.kept.params}
        #: What is known of these; the shape of a state has None where batches differ.
        self.param_specs: dict[str, Union[ParamSpec, KeptSpec]] = {**plan.params, **self.kept.param_specs}
        #: Training steps done so far; the trainer increments it, loading a model sets it, and schedules read it.
        self.global_step = tf.Variable(0, dtype=tf.int64, trainable=False, name="global_step")
        self._feed_format: Optional[FeedFormat] = None
        #: Files of layers such as hdf_dump, written in the tasks; `run` writes nothing, as it knows no sequences.
        dumping: dict[str, Any] = {node.path: node.layer for node in plan.nodes if node.layer.has_sink}
        self.sinks = OpenSinks(dumping)
        self._functions: dict[tuple[tuple[str, ...], bool, bool], FeedFunction] = {}

    @classmethod
    def from_config(
        cls, config: Config, *, train: bool = False, search: bool = False, evaluate: bool = False
    ) -> Network:
        """Plan the network of a config and create its variables, see `plan_from_config`."""
        plan = plan_from_config(config, train=train, search=search, evaluate=evaluate)
        return cls(plan, config, seed=TrainingSettings(config).random_seed)

    def __repr__(self) -> str:
        mode = "to train" if self.train else "to search" if self.search else "to evaluate"
        return "<Network %s, %d parameters>" % (mode, sum(spec.size for spec in self.plan.params.values()))

    def _repr_html_(self) -> str:
        return self.plan._repr_html_()

    @property
    def jit_compile(self) -> bool:
        """Return whether XLA compiles the steps of training and evaluation."""
        return NetworkSettings(self.config).jit_compile

    # --- parameters ---

    def initial_value(self, spec: ParamSpec) -> NDArray[Any]:
        """Return the initial value of a parameter; it depends only on its name, its initialiser and the seed."""
        return InitialValues(self.plan, self.config, self.seed).array(spec)

    @property
    def trainable_params(self) -> dict[str, Any]:
        """Return the variables that the optimizer updates."""
        specs = self.plan.params
        return {name: var for name, var in self.stored_params.items() if specs[name].trainable}

    def set_param_values(self, values: Mapping[str, Any]) -> None:
        """Set parameters by name; nothing is changed if one of them does not fit.

        :raises ConfigError: unknown name or wrong shape
        :raises DataError: NaN or infinity for one that is rounded
        """
        for name, value in values.items():
            if name not in self.params:
                raise DimError("There is no parameter %r. %s" % (name, did_you_mean(name, self.params)))
            expected = tuple(self.params[name].shape.as_list())
            if not self.params[name].shape.is_compatible_with(np.shape(value)):
                raise DimError("Parameter %r has the shape %s, not %s." % (name, expected, np.shape(value)))
        check_values({name: self.params[name] for name in values}, values)
        for name, value in values.items():
            self.params[name].assign(np.asarray(value, dtype=self.params[name].dtype.as_numpy_dtype))

    def get_param_values(self) -> dict[str, NDArray[Any]]:
        """Return all parameters by name."""
        return {name: var.numpy() for name, var in self.stored_params.items()}

    def plain_params(self) -> dict[str, Any]:
        """Return the parameters as other programs know them: with what adapters add to them, and without these."""
        values = self.stored_params
        return {
            name: values[name] if spec.adapter is None else spec.adapter.added_to(values[name], values)
            for name, spec in self.plan.plain_params.items()
        }

    def plain(self) -> Network:
        """Return a network without adapters that computes the same; this one if it has none."""
        if not self.plan.adapted:
            return self
        config = without_fine_tuning(self.config)
        made = Network(plan_from_config(config, train=self.train, search=self.search), config, seed=self.seed)
        made.set_param_values({name: value.numpy() for name, value in self.plain_params().items()})
        made.global_step.assign(self.global_step)
        return made

    def begin_pass(self) -> None:
        """Begin with other sequences: states that layers keep from batch to batch (``keep_over_epoch``) become zero."""
        self.kept.begin_pass()

    # --- inputs ---

    @property
    def extern_data(self) -> Mapping[str, Data]:
        """Return all declared data keys."""
        return self.plan.extern_data

    @property
    def used_data_keys(self) -> list[str]:
        """Return the data keys that outputs and losses need."""
        return self.data_keys(self.plan.roots())

    def data_keys(self, nodes: Sequence[Node], *, with_losses: bool = True) -> list[str]:
        """Return the data keys that some layers and the losses need."""
        return needed_extern_keys(self.plan, nodes, with_losses)

    def feed_format(self, keys: Optional[Sequence[str]] = None) -> FeedFormat:
        """Return names, shapes and dtypes of the feed.

        :param keys: data keys; default: those that outputs and losses need
        """
        if keys is not None:
            return FeedFormat(self.extern_data, keys)
        if self._feed_format is None:
            self._feed_format = FeedFormat(self.extern_data, self.used_data_keys)
        return self._feed_format

    def input_signature(self) -> dict[str, Any]:
        """Return feed name -> `tf.TensorSpec`: batch-major arrays and the lengths of their dynamic axes."""
        return self.feed_format().signature

    def convert_feed(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of a feed that outputs and losses need, as tensors of the right dtype.

        :raises ConfigError: see `FeedFormat.convert`
        """
        return self.feed_format().convert(feed)

    def sink_nodes(self) -> list[Node]:
        """Return the layers with a sink that the results need."""
        needed = self.plan.needed(self.plan.roots()) if self.sinks else set()
        return [node for node in self.plan.nodes if node in needed and node.layer.has_sink]

    # --- running ---

    def lower(
        self,
        feed: Mapping[str, Any],
        *,
        train: Optional[bool] = None,
        step: Any = None,
        outputs: Optional[Sequence[Node]] = None,
        with_losses: bool = True,
        variables: Optional[Mapping[str, Any]] = None,
        carried: Optional[CarriedState] = None,
        noise_offset: int = 0,
        scales: Mapping[tuple[str, str], Any] = MappingProxyType({}),
    ) -> Lowered:
        """Emit the ops of some layers and of all losses; call it inside a `tf.function`.

        :param feed: tensors, see `input_signature`
        :param train: whether dropout etc. are active; default: as the network was planned
        :param step: the global step; default: `global_step`
        :param outputs: the requested layers; default: those whose values are results
        :param variables: parameter name -> anything that becomes a tensor; default: the variables of this network
        :param carried: holds the states that layers carry from run to run; default: the variables in `kept`
        :param noise_offset: with another one, dropout and the like draw other numbers
        :param scales: see `LoweringOptions`
        """
        noise_seed = self.noise_seed + noise_offset
        with using_config(self.config):
            return lower(
                self.plan,
                self.stored_params if variables is None else variables,
                feed,
                train=self.train if train is None else train,
                outputs=self.plan.roots() if outputs is None else outputs,
                with_losses=with_losses,
                step=self.global_step if step is None else step,
                seed=noise_seed,
                process_offset=noise_seed - self.seed,
                check_numerics=check_numerics.option(self.config),
                print_outputs=NetworkSettings(self.config).debug_print_layer_output,
                carried=self.kept if carried is None else carried,
                second_derivatives=needs_second_derivatives(self.config),
                skip_padding=NetworkSettings(self.config).skip_padding,
                scales=scales,
            )

    def feed_function(
        self, emit: Callable[..., Any], keys: Optional[Sequence[str]] = None, **options: Any
    ) -> FeedFunction:
        """Return a traced function of a feed which runs this network, see `FeedFunction`.

        :param keys: data keys; default: those that outputs and losses need
        """
        feed_format = self.feed_format(keys)
        batched = [key for key in feed_format.keys if self.extern_data[key].batch_axis is not None]

        def check(tensors: Mapping[str, Any]) -> None:
            if batched:
                self.kept.check(int(tensors[batched[0]].shape[0]))

        return FeedFunction(feed_format, emit, before_run=check if self.kept.specs else None, **options)

    def fetch_nodes(self, fetch: Sequence[str]) -> list[Node]:
        """Return layers by path.

        :raises ConfigError: if one is not part of the planned network
        """
        return self.plan.find_nodes(fetch)

    def run(
        self,
        feed: Mapping[str, Any],
        *,
        train: Optional[bool] = None,
        with_grad: bool = False,
        fetch: Sequence[str] = (),
    ) -> RunResult:
        """Evaluate "output", every layer with is_output_layer and every layer with a loss.

        :param feed: "<key>" -> batch-major array, "<key>/size<i>" -> int32 [batch]: lengths of axis i, not counting
            batch
        :param train: whether dropout etc. are active; default: as the network was planned
        :param with_grad: also return the gradient of the total loss w.r.t. all trainable parameters that it depends on
        :param fetch: further layers by path
        """
        nodes = list(dict.fromkeys(self.plan.roots() + self.fetch_nodes(fetch)))
        train = self.train if train is None else train
        if with_grad and self.plan.rounded:
            raise refusal_to_train("quantize")
        cache_key = (tuple(n.path for n in nodes), train, with_grad)
        if cache_key not in self._functions:
            self._functions[cache_key] = self._run_function(nodes, train, with_grad)
        raw = self._functions[cache_key](feed)
        losses = {k: v.numpy() for k, v in raw["losses"].items()}
        total = raw.get("total_loss")
        return RunResult(
            layers={
                n.path: layer_result(
                    n.output, raw["values"][n.path], raw["lens"][n.path], raw["beam_scores"].get(n.path)
                )
                for n in nodes
            },
            losses=losses,
            errors={k: v.numpy() for k, v in raw["errors"].items()},
            counts={k: v.numpy() for k, v in raw["counts"].items()},
            total_loss=None if total is None else total.numpy(),
            grads={k: v.numpy() for k, v in raw["grads"].items()},
        )

    def _run_function(self, nodes: list[Node], train: bool, with_grad: bool) -> FeedFunction:
        def emit(feed: dict[str, Any]) -> dict[str, Any]:
            out = self.lower(feed, train=train, outputs=nodes)
            total_loss = out.total_loss
            result = {
                "values": {n.path: out.values[n.path] for n in nodes},
                "lens": {n.path: {str(a): v for a, v in out.lens_by_axis(n.output).items()} for n in nodes},
                "losses": out.losses,
                "errors": out.errors,
                "counts": out.counts,
                "beam_scores": {n.path: s for n in nodes if (s := scores_of(out.lowering, n)) is not None},
                "grads": {},
            }
            if self.plan.losses or out.has_constraints:
                result["total_loss"] = total_loss
            if with_grad and (out.objective is not None or out.has_constraints):
                result["grads"] = dense_gradients(total_loss, self.trainable_params)
            out.run_updates()
            return result

        return self.feed_function(emit, self.data_keys(nodes))


def dense_gradients(objective: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradients by parameter name, without the parameters that the objective does not depend on.

    Not by a tape: it loses derivatives of a derivative through a loop, for which TensorFlow adds results to the loop.
    """
    names = list(params)
    grads = derivatives(objective, [params[name] for name in names])
    return {name: tf.convert_to_tensor(grad) for name, grad in zip(names, grads) if grad is not None}

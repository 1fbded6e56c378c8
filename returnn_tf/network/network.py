"""`Network`: a planned network with its variables, and `run`, which evaluates it."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.config.epoch_value import network_of
from returnn_tf.config.user_code import using_config
from returnn_tf.graph import check_numerics
from returnn_tf.graph.node import Node, ParamSpec
from returnn_tf.network.loops.step_network import plan_step_network
from returnn_tf.network.lower import Lowered, lower, needed_extern_keys
from returnn_tf.network.passes import run_passes
from returnn_tf.network.planning.plan import Plan
from returnn_tf.network.planning.planning import build_plan
from returnn_tf.network.result import LayerResult, RunResult
from returnn_tf.tensor import Data, extern_data_options, parse_extern_data
from returnn_tf.util.host_tensors import host_tensor
from returnn_tf.util.lazy_tf import tf


def plan_from_config(config: Any, *, train: bool = False, search: bool = False) -> Plan:
    """The plan of the network of a config; needs no TensorFlow.

    :param config: a `Config`
    :raises ConfigError: with layer path and fix
    """
    network = network_of(config)
    if network is None:
        raise ConfigError("The config has no network. Add e.g. network = {'output': {'class': 'softmax', ...}}.")
    keys = ("extern_data", "num_inputs", "num_outputs")
    extern_data = parse_extern_data(extern_data_options({k: config.typed(k) for k in keys}))
    plan = build_plan(
        network,
        extern_data,
        behavior_version=config.behavior_version,
        train=train,
        search=search,
        default_target=config.typed("target", None) or "classes",
        plan_loop=plan_step_network,
    )
    return dataclasses.replace(run_passes(plan), config=config)


class Network:
    """A network with its variables.

    :param plan: see `plan_from_config`
    :param seed: of the initial values
    """

    def __init__(self, plan: Plan, *, seed: int = 42) -> None:
        self.plan = plan
        self.train = plan.train
        self.search = plan.search
        self.seed = seed
        self.noise_seed = seed  # of dropout and the like; processes which train together have different ones
        self.param_specs: Dict[str, ParamSpec] = plan.params
        self.params: Dict[str, Any] = {name: self._variable(spec) for name, spec in self.param_specs.items()}
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="global_step")
        self._functions: Dict[Any, Any] = {}

    @classmethod
    def from_config(cls, config: Any, *, train: bool = False, search: bool = False) -> Network:
        """Plans the network of a config and creates its variables.

        :param train: whether dropout and other things of training are on
        :param search: whether to search instead of following the targets
        """
        return cls(plan_from_config(config, train=train, search=search), seed=config.int("random_seed", 42) or 42)

    # --- parameters ---

    def _variable(self, spec: ParamSpec) -> Any:
        with tf.device(spec.device):
            return tf.Variable(self.initial_value(spec), trainable=spec.trainable, name=_variable_name(spec.name))

    def initial_value(self, spec: ParamSpec) -> numpy.ndarray:
        """The initial value of a parameter; it depends on nothing but its name, its initialiser and the seed."""
        rng = numpy.random.default_rng([self.seed, zlib.crc32(spec.name.encode("utf8"))])
        return numpy.asarray(spec.init(spec.shape, rng)).astype(spec.dtype).reshape(spec.shape)

    @property
    def trainable_params(self) -> Dict[str, Any]:
        """The variables which the optimizer updates."""
        return {name: var for name, var in self.params.items() if self.param_specs[name].trainable}

    def set_param_values(self, values: Mapping[str, Any]) -> None:
        """Sets parameters by name; nothing is changed if one of them does not fit.

        :raises ConfigError: unknown name or wrong shape
        """
        for name, value in values.items():
            if name not in self.params:
                raise ConfigError("There is no parameter %r. %s" % (name, did_you_mean(name, self.params)))
            expected = tuple(self.params[name].shape.as_list())
            if numpy.shape(value) != expected:
                raise ConfigError("Parameter %r has the shape %s, not %s." % (name, expected, numpy.shape(value)))
        for name, value in values.items():
            self.params[name].assign(numpy.asarray(value, dtype=self.params[name].dtype.as_numpy_dtype))

    def get_param_values(self) -> Dict[str, numpy.ndarray]:
        """All parameters by name."""
        return {name: var.numpy() for name, var in self.params.items()}

    # --- inputs ---

    @property
    def extern_data(self) -> Dict[str, Data]:
        """All declared data keys."""
        return self.plan.extern_data

    @property
    def used_data_keys(self) -> List[str]:
        """The data keys that outputs and losses need."""
        return needed_extern_keys(self.plan, self.plan.roots(), True)

    def input_signature(self, keys: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        """Feed name -> `tf.TensorSpec`: batch-major arrays and the lengths of their dynamic axes."""
        result = {}
        for key in self.used_data_keys if keys is None else keys:
            data = self.plan.extern_data[key]
            sizes, dynamic = feed_layout(data)
            result[key] = tf.TensorSpec(sizes, data.dtype)
            for i in dynamic:
                result["%s/size%d" % (key, i)] = tf.TensorSpec([None], tf.int32)
        return result

    def convert_feed(self, feed: Mapping[str, Any], keys: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        """The entries of a feed that are needed, as tensors of the right dtype.

        :raises ConfigError: names the key which is missing or has the wrong rank
        """
        result = {}
        for name, spec in self.input_signature(keys).items():
            if name not in feed:
                if "/size" in name and self._lens_from_other_key(name, feed, keys):
                    continue
                raise ConfigError("The feed lacks %r (%s %s)." % (name, spec.dtype.name, spec.shape))
            value = feed[name]
            if not isinstance(value, tf.Tensor):
                value = numpy.asarray(value)
                if not spec.shape.is_compatible_with(value.shape):
                    raise ConfigError(
                        "The feed has %r of shape %s, the network expects %s." % (name, value.shape, spec.shape)
                    )
                if value.dtype.kind in "fc" and spec.dtype.is_integer:
                    raise ConfigError(
                        "The feed has %r of type %s, the network expects %s. Give integers: fractions would be cut off."
                        % (name, value.dtype, spec.dtype.name)
                    )
                value = host_tensor(value, spec.dtype)
            result[name] = value
        return result

    def _lens_from_other_key(self, name: str, feed: Mapping[str, Any], keys: Optional[Sequence[str]]) -> bool:
        """Whether the same dim has its lengths fed with another key."""
        key, _, axis = name.rpartition("/size")
        dim = _dim_of_feed_axis(self.plan.extern_data[key], int(axis))
        for other in self.used_data_keys if keys is None else keys:
            data = self.plan.extern_data[other]
            for i in feed_layout(data)[1]:
                if _dim_of_feed_axis(data, i) is dim and "%s/size%d" % (other, i) in feed:
                    return True
        return False

    # --- running ---

    def lower(
        self, feed: Mapping[str, Any], *, train: Optional[bool] = None, step: Any = None, fetch: Sequence[Node] = ()
    ) -> Lowered:
        """Emits the ops of all outputs and losses; call it inside of a `tf.function`.

        :param feed: tensors, see `input_signature`
        """
        outputs = list(dict.fromkeys(self.plan.roots() + list(fetch)))
        with using_config(self.plan.config):
            return lower(
                self.plan,
                self.params,
                feed,
                train=self.train if train is None else train,
                outputs=outputs,
                step=self.step if step is None else step,
                seed=self.noise_seed,
                check_numerics=check_numerics.option(self.plan.config),
            )

    def fetch_nodes(self, fetch: Sequence[str]) -> List[Node]:
        """Layers by path.

        :raises ConfigError: if one is not part of the planned network
        """
        by_path = self.plan.by_path()
        for name in fetch:
            if name not in by_path:
                raise ConfigError(
                    "fetch: layer %r is not part of the network. Nothing needs it, unless it has "
                    "is_output_layer=True. %s" % (name, did_you_mean(name, by_path))
                )
        return [by_path[name] for name in fetch]

    def run(self, feed: Mapping[str, Any], *, with_grad: bool = False, fetch: Sequence[str] = ()) -> RunResult:
        """Evaluates "output", every layer with is_output_layer and every layer with a loss.

        :param feed: "<key>" -> batch-major array, "<key>/size<i>" -> int32 [batch]: lengths of axis i, not counting
            batch
        :param with_grad: also the gradient of the total loss w.r.t. all trainable parameters which it depends on
        :param fetch: further layers by path
        """
        nodes = list(dict.fromkeys(self.plan.roots() + self.fetch_nodes(fetch)))
        keys = needed_extern_keys(self.plan, nodes, True)
        inputs = self.convert_feed(feed, keys)
        cache_key = (tuple(sorted(inputs)), tuple(n.path for n in nodes), with_grad)
        if cache_key not in self._functions:
            self._functions[cache_key] = self._trace(inputs, nodes, keys, with_grad)
        raw = self._functions[cache_key](inputs)
        losses = {k: v.numpy() for k, v in raw["losses"].items()}
        total = raw.get("total_loss")
        return RunResult(
            layers={
                n.path: _layer_result(n.output, raw["values"][n.path], raw["lens"][n.path], raw["beam_scores"])
                for n in nodes
            },
            losses=losses,
            errors={k: v.numpy() for k, v in raw["errors"].items()},
            counts={k: v.numpy() for k, v in raw["counts"].items()},
            total_loss=None if total is None else total.numpy(),
            grads={k: v.numpy() for k, v in raw["grads"].items()},
        )

    def _trace(self, inputs: Mapping[str, Any], nodes: List[Node], keys: List[str], with_grad: bool) -> Any:
        signature = {name: spec for name, spec in self.input_signature(keys).items() if name in inputs}

        def graph(feed: Dict[str, Any]) -> Dict[str, Any]:
            with tf.GradientTape() as tape:
                out = self.lower(feed, fetch=nodes)
                total_loss = out.total_loss  # within the tape: it adds the constraints
            result = {
                "values": {n.path: out.values[n.path] for n in nodes},
                "lens": {n.path: {str(a): v for a, v in out.lens_by_axis(n.output).items()} for n in nodes},
                "losses": out.losses,
                "errors": out.errors,
                "counts": out.counts,
                "beam_scores": out.lowering.beam_scores,
                "grads": {},
            }
            if self.plan.losses:
                result["total_loss"] = total_loss
            if with_grad and out.objective is not None:
                result["grads"] = dense_gradients(tape, total_loss, self.trainable_params)
            for update in out.updates:
                update()
            return result

        return tf.function(graph, autograph=False).get_concrete_function(signature)


def dense_gradients(tape: Any, objective: Any, params: Mapping[str, Any]) -> Dict[str, Any]:
    """Gradients by parameter name, without the parameters that the objective does not depend on."""
    names = list(params)
    grads = tape.gradient(objective, [params[name] for name in names])
    return {name: tf.convert_to_tensor(grad) for name, grad in zip(names, grads) if grad is not None}


def feed_layout(data: Data) -> Tuple[List[Optional[int]], List[int]]:
    """(sizes of the batch-major array with None where dynamic, indices of the dynamic axes not counting batch)."""
    order = _batch_major_order(data)
    sizes = [data.dims[a].size for a in order]
    offset = 0 if data.batch_axis is None else 1
    return sizes, [i - offset for i, a in enumerate(order) if data.dims[a].is_dynamic]


def _batch_major_order(data: Data) -> List[int]:
    order = list(range(data.rank))
    if data.batch_axis is not None:
        order.insert(0, order.pop(data.batch_axis))
    return order


def _dim_of_feed_axis(data: Data, index: int) -> Any:
    order = _batch_major_order(data)
    return data.dims[order[index + (0 if data.batch_axis is None else 1)]]


def _layer_result(data: Data, value: Any, lens: Mapping[str, Any], beam_scores: Mapping[str, Any]) -> LayerResult:
    order = _batch_major_order(data)
    kinds = data.axis_kinds
    array = value.numpy()
    if array.ndim:
        array = numpy.transpose(array, order)
    sizes = {order.index(int(axis)): v.numpy() for axis, v in lens.items()}
    scores = None if data.beam is None else beam_scores[data.beam.of].numpy()
    return LayerResult(array, tuple(kinds[a] for a in order), sizes, scores)


def _variable_name(name: str) -> str:
    """A name that TensorFlow accepts for a variable; ours is the key in `Network.params`."""
    return "".join(c if c.isalnum() or c in "_./-" else "_" for c in name).lstrip("_./-") or "var"

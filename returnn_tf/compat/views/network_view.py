"""``self.network`` in user code."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

import numpy as np

from returnn_tf.compat.views.data_view import DataView
from returnn_tf.config.errors import CodeError, did_you_mean
from returnn_tf.config.user_code import config_in_use
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node
from returnn_tf.util.lazy_tf import tf

ViewOfNode = Callable[[Node], Any]


class NetworkView:
    """A network: that of the whole config, or one inside a layer.

    :param ctx: of the layer that the code is part of
    :param path: of the layer that the network is part of, "" at the top
    :param view: makes the view of a layer
    """

    def __init__(self, ctx: EmitContext, path: str, view: ViewOfNode) -> None:
        self._ctx = ctx
        self._view = view
        self.name = path or "root"
        self._path = path
        #: Whether the code asked for the mode, so that it may do other things in other modes.
        self.asked_mode = False

    # --- mode and settings ---

    @property
    def train_flag(self) -> bool:
        """Return whether this is a training graph."""
        self.asked_mode = True
        return self._ctx.train

    @property
    def search_flag(self) -> bool:
        """Return whether this is a search graph."""
        self.asked_mode = True
        return self._ctx.search

    @property
    def eval_flag(self) -> bool:
        """Return whether losses are computed: in all graphs but those of a search."""
        self.asked_mode = True
        return not self._ctx.search

    def cond_on_train(self, fn_train: Callable[[], Any], fn_eval: Callable[[], Any]) -> Any:
        """Return the value of the first function in a training graph, else that of the second."""
        self.asked_mode = True
        return fn_train() if self._ctx.train else fn_eval()

    def get_config(self, consider_global_config: bool = True, fallback_dummy_config: bool = True) -> Any:
        """Return the `Config`."""
        del consider_global_config, fallback_dummy_config
        return config_in_use()

    _config = property(get_config)

    @property
    def global_train_step(self) -> Any:
        """Return the global train step, int64 scalar."""
        return tf.constant(0, tf.int64) if self._ctx.step is None else self._ctx.step

    @property
    def random(self) -> np.random.RandomState:
        """Return a source of random numbers, e.g. ``random.randint(2 ** 31)`` for a seed; the same in every graph."""
        text = "%d/%s" % (self._ctx.lowering.options.seed, self._ctx.node.path)
        return np.random.RandomState(zlib.crc32(text.encode("utf8")))

    # --- layers ---

    @property
    def layers(self) -> Mapping[str, Any]:
        """Return views of the layers computed so far by name, and of those of other networks by path."""
        result = {node.path: self._view(node) for node in self._ctx.lowering.values.outputs}
        prefix = self._path + "/"
        return {**result, **{path[len(prefix) :]: view for path, view in result.items() if path.startswith(prefix)}}

    def get_layer(self, layer_name: str) -> Any:
        """Return a layer that is already computed; list it in ``from`` to ensure that.

        :raises ConfigError: there is none of this name yet
        """
        found = self._find(layer_name)
        if found is None:
            known = [node.path for node in self._ctx.lowering.values.outputs]
            raise CodeError(
                "Layer %r (class %r): its code asks for the layer %r, which is not computed yet, or does not exist. "
                "Add it to 'from' or 'extra_deps' of this layer. %s"
                % (
                    self._ctx.node.path,
                    self._ctx.node.layer.class_name,
                    "%s/%s" % (self._path, layer_name) if self._path else layer_name,
                    did_you_mean(layer_name, known),
                )
            )
        return self._view(found)

    def _find(self, name: str) -> Optional[Node]:
        if name.startswith("base:") and self._path:
            parent = self.parent_net
            return None if parent is None else parent._find(name[len("base:") :])
        paths = [name]
        if self._path:
            full = "%s/%s" % (self._path, name)
            source = "%s/source" % self._path
            # In a step of a loop, a layer that is computed for all steps at once is there as the slice of this step.
            paths = ["%s/slice of %s" % (self._path, full), full, name]
            if name in ("data", "data:source"):
                paths = ["%s/slice of %s" % (self._path, source), source, name]
        nodes = {node.path: node for node in self._ctx.lowering.values.outputs}
        return next((nodes[path] for path in paths if path in nodes), None)

    def get_default_output_layer(self, must_exist: bool = True) -> Any:
        """Return the layer "output"."""
        found = self._find("output")
        return self.get_layer("output") if found is not None or must_exist else None

    @property
    def parent_net(self) -> Optional[NetworkView]:
        """Return the network around this one, or None."""
        if not self._path:
            return None
        return NetworkView(self._ctx, self._path.rpartition("/")[0], self._view)

    @property
    def parent_layer(self) -> Any:
        """Return the layer that this network is part of, or None."""
        parent = self.parent_net
        found = None if parent is None else parent._find(self._path)
        return None if found is None else self._view(found)

    # --- steps of a loop ---

    def is_inside_rec_layer(self, inside_loop: bool = True) -> bool:
        """Return whether the code runs in a step of a loop."""
        del inside_loop
        return self._ctx.lowering.loop.index is not None

    def get_rec_step_index(self) -> Any:
        """Return the index of the step, int32 scalar.

        :raises ConfigError: the layer is not computed in a step of a loop
        """
        return self.get_rec_step_info().step

    def get_rec_step_info(self, must_exist: bool = True) -> Any:
        """Return the index of the step and the flags of ended sequences.

        :raises ConfigError: the layer is not computed in a step of a loop
        """
        if self._ctx.lowering.loop.index is None:
            if not must_exist:
                return None
            raise CodeError(
                "Layer %r (class %r): its code asks for the step of the loop, but the layer is computed outside, or "
                "for all steps at once. Take ':i' as a source, or set 'optimize_move_layers_out': False in the rec "
                "layer around it." % (self._ctx.node.path, self._ctx.node.layer.class_name)
            )
        return StepInfo(self._ctx)

    # --- data ---

    @property
    def extern_data(self) -> ExternDataView:
        """Return the data fed to the network."""
        return ExternDataView(self._ctx)

    def get_extern_data(self, key: str, mark_data_key_as_used: bool = True) -> DataView:
        """Return the data of one key."""
        del mark_data_key_as_used
        return self.extern_data.data[key]

    def get_data_batch_dim(self) -> Any:
        """Return the number of sequences, times the hypotheses in a loop that searches."""
        return self._ctx.lowering.dims.batch_size

    def get_seq_tags(self, *args: Any, **options: Any) -> Any:
        """Raise an error: the names of the sequences are no part of the feed.

        :raises ConfigError: always
        """
        raise CodeError(
            "Layer %r (class %r): its code asks for the names of the sequences, which the network is not fed with. To "
            "write values by sequence, use a layer of class 'hdf_dump'; else let the dataset give a number as data."
            % (self._ctx.node.path, self._ctx.node.layer.class_name)
        )

    def get_used_data_keys(self) -> set[str]:
        """Return the data keys that the network needs."""
        return {node.extern_key for node in self._ctx.lowering.values.outputs if node.extern_key is not None}


class StepInfo:
    """The step of a loop, in user code."""

    def __init__(self, ctx: EmitContext) -> None:
        self._ctx = ctx
        #: Index of the step, int32 scalar.
        self.step = ctx.lowering.loop.index

    def get_prev_end_flag(self, target_search_choices: Any = None) -> Any:
        """Return which sequences or hypotheses ended before this step, bool [batch]."""
        del target_search_choices
        ended = self._ctx.ended
        return tf.zeros([self._ctx.lowering.dims.batch_size], tf.bool) if ended is None else ended


class ExternDataView:
    """``network.extern_data`` in user code."""

    def __init__(self, ctx: EmitContext) -> None:
        self.data = _Keys(ctx)

    def get_data(self, name: str) -> DataView:
        """Return the data of one key."""
        return self.data[name]


class _Keys(Mapping[str, DataView]):
    """The data by key."""

    def __init__(self, ctx: EmitContext) -> None:
        self._ctx = ctx
        self._nodes = {n.extern_key: n for n in ctx.lowering.values.outputs if n.extern_key is not None}

    def __getitem__(self, key: str) -> DataView:
        if key not in self._nodes:
            raise CodeError(
                "Layer %r (class %r): its code asks for the data key %r, but the network is fed with %s only. Add "
                "'data:%s' to 'from' or 'extra_deps' of this layer."
                % (self._ctx.node.path, self._ctx.node.layer.class_name, key, sorted(map(str, self._nodes)), key)
            )
        node = self._nodes[key]
        return DataView(node.output, self._ctx.value(node), self._ctx, key)

    def __contains__(self, key: object) -> bool:
        return key in self._nodes

    def __iter__(self) -> Iterator[str]:
        return iter(str(key) for key in self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

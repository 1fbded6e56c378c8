"""The bases of layer classes in configs: ``from TFNetworkLayer import LayerBase, _ConcatInputLayer, CopyLayer``.

`__init__` of such a class emits the ops of the layer. It runs once while the network is planned, in a graph that is
thrown away, to find out the parameters and the output, and then in each graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Callable, Optional

from returnn_tf.compat.modules.layers.base_template import concat_view, output_like
from returnn_tf.compat.modules.layers.host import HOST
from returnn_tf.compat.views.data_view import DataView
from returnn_tf.config.errors import CodeError, did_you_mean
from returnn_tf.util.lazy_tf import tf

#: The options of every layer: the network takes care of them, whatever the class does.
BASE_OPTIONS = frozenset(
    ("n_out", "out_type", "target", "rec_previous_layer", "trainable", "initial_output", "name_scope", "reuse_params")
)


def _refuse_others(function: str, given: dict[str, Any], without_effect: tuple[str, ...] = ()) -> None:
    """Check that there are no further arguments.

    :param without_effect: those that may be given, as they change no value
    :raises ConfigError: names the first one that there is
    """
    for name in given:
        if name not in without_effect:
            raise CodeError("%s: the argument %r is not supported. Remove it." % (function, name))


class LayerBase:
    """A layer: sets ``self.output.placeholder`` in `__init__`.

    :param name: in the network
    :param network: view of the network
    :param output: what `get_out_data_from_opts` returned
    :param sources: views of the layers in ``from``
    :param target: data key or layer
    :param rec_previous_layer: in a loop: has ``rec_vars_outputs`` of the previous step
    """

    layer_class: Optional[str] = None
    recurrent = False

    def __init__(
        self,
        name: str,
        network: Any,
        output: Optional[DataView] = None,
        sources: Any = (),
        target: Any = None,
        n_out: Optional[int] = None,
        out_type: Any = None,
        rec_previous_layer: Any = None,
        trainable: Optional[bool] = None,
        initial_output: Any = None,
        **others: Any,
    ) -> None:
        unknown = [key for key in others if key not in BASE_OPTIONS]
        if unknown:
            raise CodeError("unknown option %r. %s" % (unknown[0], did_you_mean(unknown[0], BASE_OPTIONS)))
        self._host: Any = HOST.get()
        self.name = name
        self.network = network
        self.sources = list(sources)
        self.target = target
        self.output = self.get_out_data_from_opts(
            name=name, network=network, sources=self.sources, n_out=n_out, out_type=out_type, target=target
        ) if output is None else output  # fmt: skip
        self.trainable = trainable is not False
        self.initial_output = initial_output
        self.params: dict[str, Any] = {}
        self.rec_vars_outputs: dict[str, Any] = {}
        self._rec_previous_layer = rec_previous_layer
        self.output_before_activation: Any = None
        self.output_loss: Any = None

    # --- while the network is planned ---

    @classmethod
    def transform_config_dict(cls, d: dict[str, Any], network: Any, get_layer: Callable[[str], Any]) -> None:
        """Replace names of layers in the options by layers.

        :param d: the options of the layer, to be changed in place
        :param get_layer: returns the view of a layer
        """
        names = d.pop("from", [])
        names = [names] if isinstance(names, str) else names
        d["sources"] = [get_layer(name) for name in names if name != "none"]

    @classmethod
    def get_out_data_from_opts(cls, **kwargs: Any) -> DataView:
        """Return the template of the output, without values.

        By default it is that of the first source, with ``n_out`` features and the changes by ``out_type``.
        """
        return output_like(**kwargs)

    @classmethod
    def fixup_out_data(cls, output: DataView, **kwargs: Any) -> DataView:
        """Return the template as it is: nothing is left to complete."""
        del kwargs
        return output

    @classmethod
    def get_rec_initial_extra_outputs(cls, batch_dim: Any, rec_layer: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return the state before the first step of a loop, by name."""
        return {}

    @classmethod
    def get_rec_initial_extra_outputs_shape_invariants(cls, **kwargs: Any) -> dict[str, Any]:
        """Return the shapes of those states whose shape changes from step to step."""
        return {}

    # --- for `__init__` ---

    @contextlib.contextmanager
    def var_creation_scope(self, **kwargs: Any) -> Iterator[Any]:
        """Yield the variable scope of the layer."""
        _refuse_others("var_creation_scope", kwargs)
        scope = tf.compat.v1.get_variable_scope()
        with tf.compat.v1.variable_scope(scope) as scope:
            yield scope

    def add_param(self, param: Any, custom_update: Any = None, trainable: Optional[bool] = None, **others: Any) -> Any:
        """Register a variable as a parameter of the layer, and return it.

        :param trainable: False: the optimizer does not update it
        """
        _refuse_others("add_param", others, without_effect=("axes_split_info",))
        if custom_update is not None:
            raise CodeError("add_param: custom_update is not supported. Set trainable=False, and assign in __init__.")
        self.params[self._host.add_param(param, trainable)] = param
        return param

    def _get_target_value(self, target: Any = None, **others: Any) -> DataView:
        """Return the view of the target."""
        _refuse_others("_get_target_value", others, without_effect=("mark_data_key_as_used",))
        view: DataView = self._host.target_view(target or self.target)
        return view

    def get_batch_dim(self) -> Any:
        """Return the number of sequences, times the hypotheses in a loop that searches."""
        return self.network.get_data_batch_dim()

    def get_absolute_name(self) -> str:
        """Return the path of the layer in the whole network."""
        return str(self._host.path)

    def get_absolute_name_scope_prefix(self) -> str:
        """Return the scope of the parameters, with a slash at the end."""
        return str(self._host.scope)

    get_base_absolute_name_scope_prefix = get_absolute_name_scope_prefix

    def __repr__(self) -> str:
        return "<%s %r>" % (type(self).__name__, self.name)


class _ConcatInputLayer(LayerBase):
    """A layer whose sources are concatenated along the features: ``self.input_data``.

    :param dropout: rate of dropout on the input in training
    """

    def __init__(self, dropout: float = 0, mask: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if mask is not None:
            raise CodeError("the option mask is not supported. Multiply by a layer instead.")
        self.dropout = dropout
        self.input_data: Any = None
        if self.sources:
            self.input_data = concat_view([source.output for source in self.sources])
            if dropout and self.network.train_flag:
                self.input_data.placeholder = self._host.dropout(self.input_data.placeholder, dropout)

    @classmethod
    def get_out_data_from_opts(cls, **kwargs: Any) -> DataView:
        """Return the template of the sources side by side, with ``n_out`` features."""
        sources = kwargs.get("sources") or []
        given = concat_view([source.output for source in sources]) if sources else None
        return output_like(**{**kwargs, "source_data": given})


class CopyLayer(_ConcatInputLayer):
    """A layer whose output is its sources side by side."""

    layer_class = "copy"

    def __init__(self, extra_deps: Any = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.extra_deps = extra_deps
        self.output.placeholder = self.input_data.placeholder

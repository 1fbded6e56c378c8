"""`copy`: the sources concatenated, and layers that pass their input on."""

from __future__ import annotations

from typing import Any, Optional, Union

from returnn_tf.config.options import LayerRefs, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer, Node
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.attention_parts import note_copy
from returnn_tf.layers.shared.concat_input import ConcatInputLayer, dropout_noise_shape
from returnn_tf.tensor import Data


@register_layer("copy")
class CopyLayer(ConcatInputLayer):
    """``y = x``, several sources concatenated in the feature axis; with option dropout also dropout in training.

    Lengths: unchanged.

    Example::

        network = {
            "a": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "data"},
            "output": {"class": "copy", "from": ["data", "a"]}}
    """

    forwards_state = True
    keeps_features = True
    joins_features = True

    def template(self, ctx: PlanContext) -> Union[Data, LayerPlan]:
        """Return the template of the input."""
        return self.copied(ctx)

    def copied(self, ctx: PlanContext) -> Data:
        """Infer the template of the input, with the feature dim of the option ``out_dim``."""
        data = self.input_template(ctx)
        if self.out_dim is not None and data.feature_axis is not None:
            dim = ctx.bind(self.out_dim, data.dims[data.feature_axis])
            data = data.with_dim(data.feature_axis, dim)
        if self.n_out is not None and data.dim != self.n_out:
            raise ctx.error("n_out is %d, but the source has %s. Omit n_out." % (self.n_out, data))
        return data

    def emit(self, ctx: EmitContext) -> Any:
        """Emit no op for a single source."""
        x = self.emit_input(ctx)
        if len(self.sources) == 1:
            ctx.forward_aux()
            if not self.dropout or dropout_noise_shape(ctx, self.input, self) is None:
                note_copy(ctx, x, self.dropout or 0.0, lambda: ctx.seed("dropout", of=self.mask_name()))
        return x

    def gradient_reads_sources(self) -> bool:
        """Return False: dropout draws its mask again."""
        return False

    def gradient_reads_output(self) -> bool:
        """Return False, likewise."""
        return False

    def works_by_frame(self) -> bool:
        """Return whether dropout does."""
        return self.drops_by_frame()

    def masks_padding(self) -> bool:
        """Return whether its source does."""
        return len(self.sources) == 1 and self.source.layer.masks_padding()


@register_layer("dropout")
class DropoutLayer(CopyLayer):
    """Dropout on the source in training, else the identity (Srivastava et al. 2014).

    By default one mask serves all frames and sequences; ``dropout_noise_shape: {"*": None}`` draws every entry.
    Lengths: unchanged.

    Example::

        network = {"output": {"class": "dropout", "dropout": 0.2, "from": "data"}}
    """


@register_layer("identity")
class IdentityLayer(Layer):
    """``y = x``, after the layers in ``control_dependencies`` were computed.

    Lengths: unchanged.

    Example::

        network = {"output": {"class": "identity", "from": "data"}}
    """

    only_reshapes = True

    control_dependencies: Optional[LayerRefs] = option(None, help="layers to compute first", refs=True)

    def template(self, ctx: PlanContext) -> Data:
        """Return the template of the source."""
        return ctx.single_source()

    def emit(self, ctx: EmitContext) -> Any:
        """Emit no op."""
        ctx.forward_aux()
        return ctx.source()


def joined_source(ctx: PlanContext, layer: ConcatInputLayer) -> Node:
    """Return one node for all sources of a layer, concatenated and dropped out as its options say."""
    if len(layer.sources) == 1 and not layer.dropout and layer.in_dim is None:
        return layer.source
    copy = CopyLayer(
        dropout=layer.dropout,
        dropout_axis=layer.dropout_axis,
        dropout_noise_shape=layer.dropout_noise_shape,
        dropout_on_forward=layer.dropout_on_forward,
        in_dim=layer.in_dim,
    )
    return ctx.implicit("data", copy, layer.sources)

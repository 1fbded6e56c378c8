"""`rnn_cell`: one step of a recurrent cell in a loop, all frames outside of one."""

from __future__ import annotations

from returnn_tf.config.errors import OptionError
from returnn_tf.config.options import option
from returnn_tf.graph.option_types import Init
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.rec.rec import RecLayer, RecPlan


@register_layer("rnn_cell")
class RnnCellLayer(RecLayer):
    """``output, state = cell(x, previous state)``: one step in the network of a `rec` layer, else all frames.

    Units and parameters are those of `rec`, but "LSTMBlock" is "standardlstm" here. Where the source does not depend on
    the previous step, all steps are computed at once. Outside of a loop, the cell runs over the time axis, as `rec`.
    Lengths: unchanged; in a loop, the steps are those of the loop.

    Example::

        network = {
            "loop": {"class": "rec", "from": "data", "unit": {
                "cell": {"class": "rnn_cell", "unit": "LSTMBlock", "n_out": 3, "from": ["data:source", "prev:output"]},
                "output": {"class": "linear", "activation": "tanh", "n_out": 2, "from": "cell"}}},
            "output": {"class": "copy", "from": "loop"}}
    """

    needs_sources = True
    single_step = True
    weights_init: Init = option(None, help="initialiser of all weights of the cell")

    def template(self, ctx: PlanContext) -> RecPlan:
        """Infer the output: like `rec`, in a loop one step of it."""
        if not isinstance(self.unit, str):
            raise OptionError("the unit must be a name such as 'lstm', not %r." % (self.unit,))
        return super().template(ctx)

    def weights_inits(self) -> tuple[Init, Init]:
        """Return the initialisers of the input weights and of the recurrent weights."""
        forward, recurrent = self.forward_weights_init, self.recurrent_weights_init
        return (
            self.weights_init if forward is None else forward,
            self.weights_init if recurrent is None else recurrent,
        )

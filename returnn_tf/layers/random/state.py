"""`random_state_init`: the state of a random number generator, and what layers know about states that are constant."""

from __future__ import annotations

import zlib
from typing import Any, Optional, Union

import numpy as np

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Layer
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.ops.initializers import Initializer
from returnn_tf.ops.philox import STATE_SIZE, random_state, state_of_seed
from returnn_tf.tensor import Data, Dim, DimKind
from returnn_tf.util.lazy_tf import tf

ALGORITHMS = (None, "philox")
Seed = Union[None, int, list[int]]


def check_seed(seed: Any) -> Optional[str]:
    """Check that a seed is None, a number or a list of one to three numbers."""
    if isinstance(seed, (list, tuple)) and not 0 < len(seed) <= STATE_SIZE:
        return "must be a number or a list of one to three numbers"
    return None


def initial_state(seed: Seed) -> Initializer:
    """Return the initialiser of a parameter that holds the state for a seed; without a seed it is drawn."""
    return lambda shape, rng: random_state(rng) if seed is None else state_of_seed(seed)


def constant_state(ctx: EmitContext, seed: Seed) -> Any:
    """Return the state for a seed, int64 [3]; without a seed it follows from that of the network and the layer."""
    if seed is None:
        rng = np.random.default_rng([ctx.lowering.seed, zlib.crc32(ctx.node.path.encode("utf8"))])
        return tf.constant(random_state(rng))
    return tf.constant(state_of_seed(seed))


@register_layer("random_state_init")
class RandomStateInitLayer(Layer):
    """The state of a random number generator for a seed: int64 [3], the counter (two words) and the key of Philox.

    For `explicit_state` of `random`, or `init_by_layer` of a `variable`, which then can be advanced.
    Lengths: none.

    Example::

        network = {
            "state": {"class": "random_state_init", "seed": 42},
            "feature": {"class": "random", "shape": (), "distribution": "uniform", "dtype": "int32", "maxval": 4,
                "explicit_state": "state"},
            "output": {"class": "gather", "position": "feature", "axis": "F", "from": "data"}}
    """

    needs_sources = False
    algorithm: Optional[str] = option(
        None, choices=ALGORITHMS, help="the generator", inert="philox is the only one, and the default"
    )
    seed: Union[None, int, list[int]] = option(
        None, check=check_seed, help="number or list of up to three; default: derived from the seed of the network"
    )

    @property
    def initializer(self) -> Initializer:
        """Return what fills a variable with this state."""
        return initial_state(self.seed)

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: a vector."""
        if self.sources:
            raise ctx.error("takes no sources: 'from' must be [].")
        dim = Dim(DimKind.FEATURE, STATE_SIZE, "%s:state" % self.node.path, auto=True)
        if self.n_out not in (None, STATE_SIZE):
            raise ctx.error("the state has %d numbers, so n_out can't be %s." % (STATE_SIZE, self.n_out))
        return Data((ctx.bind(self.out_dim, dim),), "int64", feature_axis=0)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a constant."""
        return constant_state(ctx, self.seed)

"""The recurrent cell: its parameters, the projection of the whole input, and a single step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, ClassVar, Optional

from returnn_tf.config.errors import OptionError
from returnn_tf.config.options import from_options
from returnn_tf.native.product import rounds
from returnn_tf.ops.activations import check_activation
from returnn_tf.ops.cells.params import INPUT, STATE, CellParam, axes_of, whole
from returnn_tf.ops.cells.time_axis import state_at
from returnn_tf.ops.frames.stacked import stacked
from returnn_tf.ops.mixed_precision import full, matmul, reduced
from returnn_tf.ops.rounded import RowProduct, split_rows
from returnn_tf.ops.xla import xla_limit
from returnn_tf.tensor.parts import Parts
from returnn_tf.util.lazy_tf import tf

State = tuple["tf.Tensor", ...]
"""State of a cell: tensors [batch, size], in the order of `Cell.state_keys` and of the sizes in `Cell.state_sizes`."""

Params = Mapping[str, Any]
"""Parameters by their name below ``<layer>/rec/``: tensors, or each a `RoundedMatrix`, see `multiplies_rounded`.

Functions of a cell that compute with them also find the parts of kernels, see `Cell.split_kernels`.
"""

INITIALIZERS_OF_LAYER = "give forward_weights_init, recurrent_weights_init or bias_init to the layer"
"""Why a unit has no initializers of its own."""

SEED_OF_CONFIG = "masks are drawn from the random seed of the config"
"""Why a unit has no seed of its own."""


@dataclass(frozen=True)
class CellFrames:
    """The frames over which a kernel runs a cell.

    :param z: the projected input [time, batch, projected_dim]
    :param lengths: int [batch], or None if all sequences fill the array
    :param state: before the first frame
    :param seed: int [2] in training, else None
    :param reverse: each sequence runs from its last frame to its first one
    """

    z: tf.Tensor
    lengths: Optional[tf.Tensor]
    state: State
    seed: Optional[tf.Tensor] = None
    reverse: bool = False

    @property
    def batch(self) -> tf.Tensor:
        """Return the number of sequences."""
        return tf.shape(self.z)[1]

    @property
    def ends(self) -> tf.Tensor:
        """Return the lengths, int32 [batch]."""
        return all_lengths(self.lengths, self.z)

    def rounds(self, op: str, product_dtype: Optional[str]) -> bool:
        """Return whether a native op is to round its products: in training, as other graphs may run on other CPUs.

        :param op: name of the recurrence
        :param product_dtype: see `Semantics`
        """
        return self.seed is not None and rounds(op, self.z.dtype, product_dtype)

    def last(self, states: tf.Tensor) -> tf.Tensor:
        """Return a state of each sequence after its last frame, of a loop that also computes the frames after it.

        :param states: [time + 1, batch, n], where entry 0 is the initial state
        """
        return states[-1] if self.lengths is None else state_at(states, self.lengths)


Kernel = Callable[[Params, CellFrames], tuple["tf.Tensor", State]]
"""Function that returns outputs [time, batch, n], and the state of each sequence after the frame that ran last."""


class Cell:
    """A recurrent unit: pure functions of parameters, input and state.

    Terms independent of the state are computed for all frames at once by `project_input`, before the loop; terms
    independent of the frame (permuted weights, a dropout mask for the whole sequence) once by `prepare`.

    :param n_out: dimension ``n`` of the output
    :param in_dim: dimension of the input (number of classes, if sparse)
    :param sparse_input: the input holds class indices: the input weights are then a lookup table
    :param unit_opts: see `Options`
    :param input_projection: False: the input is already projected, there are no input weights and no bias
    :param behavior_version: selects old or new defaults
    :param product_dtype: type of products with parameters, see `Semantics`
    :param where: place for error messages, such as the path of the layer
    """

    unit: ClassVar[str] = ""
    """Canonical unit name, which is also the key in the table of kernels."""

    state_keys: ClassVar[tuple[str, ...]] = ()
    """Names of the states, in the order in which ``*`` concatenates them; () means one state without a name."""

    @dataclass
    class Options:
        """The options in ``unit_opts``; a subclass with options has such a nested dataclass."""

    gates: ClassVar[int] = 1
    """Width of the projected input, in units of ``n``."""

    splits_input_weights: ClassVar[bool] = True
    """The input weights are a separate matrix, so that ``input_projection`` can be switched off."""

    keeps_size: ClassVar[bool] = False
    """The input has the size of the output."""

    takes_classes: ClassVar[bool] = True
    """The input may hold class indices, see ``sparse_input``."""

    multiplies_rounded: ClassVar[bool] = False
    """`project_input` and `step` take each of the `factors` as a `RoundedMatrix`, too; kernels get floats."""

    def __init__(
        self,
        n_out: int,
        in_dim: int,
        *,
        sparse_input: bool = False,
        unit_opts: Optional[Mapping[str, Any]] = None,
        input_projection: bool = True,
        behavior_version: int = 0,
        product_dtype: Optional[str] = None,
        where: str = "rec",
    ):
        self.n_out = n_out
        self.in_dim = in_dim
        self.sparse_input = sparse_input
        self.input_projection = input_projection
        self.behavior_version = behavior_version
        self.product_dtype = product_dtype
        self.where = where
        of_unit = "%s: unit_opts of %r" % (where, self.unit)
        self.opts: Any = from_options(self.Options, unit_opts or {}, where=of_unit, none_is_absent=True)
        try:
            check_activation(getattr(self.opts, "activation", None))
        except OptionError as exc:
            raise OptionError("%s: %s" % (of_unit, exc)) from exc
        self._check_input()

    def _check_input(self) -> None:
        if self.sparse_input and not self.takes_classes:
            raise OptionError(
                "%s: unit %r needs vectors, but the input is sparse with dim %d. Put a layer in front that looks up a "
                "vector for each class, {'class': 'linear', 'activation': None, 'with_bias': False, 'n_out': ...}."
                % (self.where, self.unit, self.in_dim)
            )
        if self.input_projection:
            return
        if not self.splits_input_weights:
            raise OptionError(
                "%s: unit %r has no separate input projection: its input weights are inside of its kernel or between "
                "other operations. Remove input_projection=False. (Of the LSTMs, 'nativelstm2' has one.)"
                % (self.where, self.unit)
            )
        width = self.projected_dim
        if self.sparse_input or self.in_dim != width:
            product = " (%d * n_out)" % self.gates if width == self.gates * self.n_out else ""
            raise OptionError(
                "%s: input_projection=False needs a dense input of dim %d%s, but the input %s dim %d. "
                "Remove that option, or project the input with a linear layer of n_out %d."
                % (self.where, width, product, "is sparse with" if self.sparse_input else "has", self.in_dim, width)
            )

    @property
    def n_states(self) -> int:
        """Return the number of state tensors."""
        return len(self.state_keys) or 1

    def state_sizes(self) -> tuple[int, ...]:
        """Return the length of the vector of each state; a matrix is flattened row by row."""
        return (self.n_out,) * self.n_states

    def zero_state(self, batch: tf.Tensor, dtype: tf.DType) -> State:
        """Return a state of zeros.

        :param batch: int scalar
        """
        zeros = {size: tf.zeros([batch, size], dtype) for size in set(self.state_sizes())}
        return tuple(zeros[size] for size in self.state_sizes())

    @property
    def output_state(self) -> Optional[int]:
        """Return the index of the state that is the output of the frame before; None if there is no such state.

        It is the state "h" or the only one, if it has the size of the output. A unit for which that is wrong says so.
        """
        index = self.state_keys.index("h") if "h" in self.state_keys else 0 if self.n_states == 1 else None
        return index if index is not None and self.state_sizes()[index] == self.n_out else None

    @property
    def projected_dim(self) -> int:
        """Return the width of the result of `project_input`."""
        return self.gates * self.n_out

    def param_specs(self) -> list[CellParam]:
        """Declare the parameters in the order of their creation."""
        raise NotImplementedError

    def factors(self) -> list[str]:
        """Return the parameters that are factors of products, whose last axis are the columns."""
        kinds = ("forward", "recurrent")
        return [param.name for param in self.param_specs() if param.kind in kinds and len(param.shape) >= 2]

    def param_axes(self) -> dict[str, tuple[Parts, ...]]:
        """Return the parts of each axis of each parameter by name, see `CellParam`."""
        return {param.name: axes_of(param, self.in_dim, self.n_out) for param in self.param_specs()}

    def split_kernels(self, params: Params) -> Params:
        """Return the parameters, and of each kernel the rows ``<name>/input`` [in, ...] and ``<name>/state`` [n, ...].

        A kernel is a matrix with the rows of the input first, then those of the state. It is split here, once, for all
        functions that use a part of it: slices in each would have gradients of the size of the whole, to be added up.
        """
        found = dict(params)
        for name, axes in self.param_axes().items():
            if [part.label for part in axes[0]] == [INPUT, STATE]:
                rows = split_rows(params[name], [self.in_dim, self.n_out])
                found[name + "/input"], found[name + "/state"] = rows
        return found

    def output_parts(self) -> Parts:
        """Return the parts of the output, such as its heads."""
        return whole(self.n_out)

    def project_input(self, params: Params, x: tf.Tensor) -> tf.Tensor:
        """Compute the part of a step that depends only on the input, for all frames at once.

        :param x: [..., in_dim] dense, or [...] int if sparse
        :return: [..., projected_dim]; it may be ``x`` itself if it is no projection that `step` needs first
        """
        weights = self.input_weights(params)
        return x if weights is None else self.project(x, *weights)

    def project(self, x: tf.Tensor, weights: Any, bias: Optional[tf.Tensor] = None) -> tf.Tensor:
        """Compute ``x W + b`` in the type of products; see the function `project`."""
        return project(x, weights, bias, product_dtype=self.product_dtype)

    def input_weights(self, params: Params) -> Optional[tuple[Any, Optional[tf.Tensor]]]:
        """Return weights [in, projected_dim] and bias of the input projection, or None.

        None: there is no projection, or it is not just ``x W + b``.
        """
        return None

    def prepare(self, params: Params, *, batch: tf.Tensor, seed: Optional[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Compute once, before the loop, all that `step` needs besides frame and state.

        :param batch: int scalar, number of sequences
        :param seed: int [2]: training, draw noise from it; None: no noise
        """
        raise NotImplementedError

    def step(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, state: State, seed: Optional[tf.Tensor]
    ) -> tuple[tf.Tensor, State]:
        """Compute one frame.

        :param weights: from `prepare`
        :param z: [batch, projected_dim], a frame of `project_input`
        :param state: of the previous frame
        :param seed: int [2], different in each frame; None: no noise
        :return: output [batch, n], new state
        """
        raise NotImplementedError

    def native_kernel(self, dtype: tf.DType) -> Optional[Kernel]:
        """Return the kernel by a native op, or None if there is no op for this cell.

        The frames and the outputs are in the order of time, also if they run in reverse; padded outputs are 0.

        :param dtype: of the parameters
        """
        return None

    @property
    def is_parallel(self) -> bool:
        """Return whether `all_frames` computes all frames in parallel."""
        return False

    def all_frames(
        self, weights: Sequence[tf.Tensor], z: tf.Tensor, lengths: Optional[tf.Tensor], state: State, reverse: bool
    ) -> tuple[tf.Tensor, State]:
        """Compute all frames in parallel, with the numbers of `step`, in the order of time; padded outputs are 0.

        :param weights: from `prepare`
        """
        raise NotImplementedError

    def parallel_kernel(self) -> Optional[Kernel]:
        """Return `all_frames` as a kernel, or None."""
        return self._in_parallel if self.is_parallel else None

    def _in_parallel(self, params: Params, frames: CellFrames) -> tuple[tf.Tensor, State]:
        weights = self.prepare(params, batch=frames.batch, seed=frames.seed)
        return self.all_frames(weights, frames.z, frames.lengths, frames.state, frames.reverse)

    def loop_kernel(self) -> Optional[Kernel]:
        """Return a loop that is faster than `step_loop`, such as one with its own gradient, or None.

        It gives the numbers of `step`; see `step_loop` for the order of the frames.
        """
        return None

    def step_loop(self, params: Params, frames: CellFrames) -> tuple[tf.Tensor, State]:
        """Run `step` in a loop over the frames in their order in the array; padded outputs may be anything.

        A sequence keeps its state after its end. Converters to other formats (ONNX, TensorFlow Lite) only know loops
        like this one: an array is read at the loop counter, or created for the loop, written at the counter in each
        step, and stacked after it.
        """
        z, seed = frames.z, frames.seed
        n_frames, batch = tf.shape(z)[0], frames.batch
        weights = self.prepare(params, batch=batch, seed=seed)
        inputs = tf.TensorArray(z.dtype, n_frames, element_shape=z.shape[1:]).unstack(z)
        outputs = tf.TensorArray(z.dtype, n_frames, element_shape=[z.shape[1], self.n_out])
        ends = None if frames.lengths is None else tf.expand_dims(tf.cast(frames.lengths, tf.int32), 1)
        noise = seed if self.step_noise else None

        def frame(t: tf.Tensor, state: State, outputs: tf.TensorArray) -> tuple[tf.Tensor, State, tf.TensorArray]:
            # a seed that differs in each frame, and from that of `prepare`
            seed_of_frame = None if noise is None else noise + tf.cast(tf.stack([0, t + 1]), noise.dtype)
            output, new = self.step(weights, inputs.read(t), state, seed_of_frame)
            if ends is not None:
                running = t < ends
                new = tuple(tf.where(running, after, before) for after, before in zip(new, state))
            return t + 1, new, outputs.write(t, output)

        _, state, outputs = tf.while_loop(
            lambda t, *_: t < n_frames, frame, (0, tuple(frames.state), outputs),
            parallel_iterations=1, maximum_iterations=xla_limit(n_frames),
        )  # fmt: skip
        return stacked(outputs, [batch if z.shape[1] is None else z.shape[1], self.n_out]), state

    @property
    def step_noise(self) -> bool:
        """Return whether `step` draws noise in training."""
        return False


def all_lengths(lengths: Optional[tf.Tensor], z: tf.Tensor) -> tf.Tensor:
    """Return int32 [batch] lengths; None: all sequences have all frames of ``z`` [time, batch, ...]."""
    return tf.fill([tf.shape(z)[1]], tf.shape(z)[0]) if lengths is None else tf.cast(lengths, tf.int32)


def drop_rate(rate: float) -> Optional[str]:
    """Check a dropout or zoneout rate."""
    return None if 0 <= rate < 1 else "must be in the range 0 <= x < 1"


def project(
    x: tf.Tensor, weights: Any, bias: Optional[tf.Tensor] = None, *, product_dtype: Optional[str] = None
) -> tf.Tensor:
    """Compute ``x W + b`` over all leading axes at once; a lookup in ``W`` if ``x`` holds class indices.

    :param x: [..., in] float, or [...] int
    :param weights: [in, out], or a `RowProduct` for an ``x`` of floats
    :param bias: [out]
    :param product_dtype: see `Semantics`
    :return: [..., out]
    """
    if x.dtype.is_integer:
        z = tf.gather(weights, x)
        return z if bias is None else z + bias
    if isinstance(weights, RowProduct):
        z = weights.product(x)
        return z if bias is None else z + bias
    leading = tf.shape(x)[:-1]
    rows = tf.reshape(x, [-1, x.shape[-1]])
    if x.shape.rank == 2:  # a single frame of each sequence
        z = tf.matmul(reduced(rows, product_dtype), reduced(weights, product_dtype))
        # the gradient of bias_add, unlike that of +, is a plain reduction
        z = z if bias is None else tf.nn.bias_add(z, reduced(bias, product_dtype))
    else:
        z = matmul(rows, weights, bias, product_dtype=product_dtype)
    z = z if x.dtype.name == product_dtype else full(z, product_dtype)
    out = tf.reshape(z, tf.concat([leading, [weights.shape[-1]]], axis=0))
    out.set_shape(x.shape[:-1].concatenate([weights.shape[-1]]))
    return out


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor, shape: Optional[Any] = None) -> tf.Tensor:
    """Apply inverted dropout with stateless noise.

    :param rate: probability to drop
    :param seed: int [2]
    :param shape: of the noise, broadcast to ``x``; default the shape of ``x``
    """
    noise = tf.random.stateless_uniform(tf.shape(x) if shape is None else shape, seed=seed)
    return x * tf.cast(noise >= rate, x.dtype) * (1 / (1 - rate))

"""Histories that stay where they were written while the hypotheses of a search are reordered."""

from __future__ import annotations

from typing import Any, NamedTuple

from returnn_tf.util.lazy_tf import tf


class InPlace(NamedTuple):
    """The state of a layer in a searching loop: frames of all steps, and which of them belong to each hypothesis.

    A layer may start with one, in place of the tensor that it declares, where the lowering has ``in_place``.

    :param arrays: [capacity, batch * beam, ...]: the frames of a step, for the hypotheses of that step; not reordered
    :param rows: one int32 [batch * beam, steps]: for each hypothesis, its entry in the frames of each step; none if
        another state of the layer has both
    """

    arrays: tuple[Any, ...]
    rows: tuple[Any, ...]

    def reordered(self, index: Any) -> InPlace:
        """Return the state for other hypotheses.

        :param index: int32 [batch * beam]: the hypothesis that each one continues
        """
        return self._replace(rows=tuple(tf.gather(rows, index) for rows in self.rows))


def empty_in_place(widths: list[int], entries: Any) -> InPlace:
    """Return a history without frames, with an array [capacity, entries, width] for each width."""
    # A constant shape would be part of the static one, which the loop would require to stay the same.
    arrays = tuple(
        tf.raw_ops.PlaceholderWithDefault(input=tf.zeros(tf.stack([0, entries, width])), shape=[None, None, width])
        for width in widths
    )
    rows = tf.raw_ops.PlaceholderWithDefault(input=tf.zeros(tf.stack([entries, 0]), tf.int32), shape=[None, None])
    return InPlace(arrays, (rows,))

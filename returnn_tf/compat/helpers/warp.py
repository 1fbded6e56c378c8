"""Warping of images, and of spectrograms as images, for the code of configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Union

from returnn_tf.util.lazy_tf import tf


def dense_image_warp(image: Any, flow: Any, name: Optional[str] = None) -> Any:
    """Shift each pixel: ``y[b, i, j] = image[b, i - flow[b, i, j, 0], j - flow[b, i, j, 1]]``, bilinear.

    Positions outside of the image are those at its border.

    :param image: [batch, height, width, channels]
    :param flow: [batch, height, width, 2], in pixels
    """
    del name
    image, flow = tf.convert_to_tensor(image), tf.convert_to_tensor(flow)
    sizes = tf.shape(image)
    grid = tf.stack(tf.meshgrid(tf.range(sizes[1]), tf.range(sizes[2]), indexing="ij"), axis=-1)
    where = tf.cast(grid, flow.dtype)[None] - flow
    limits = tf.cast(sizes[1:3] - 1, flow.dtype)
    where = tf.clip_by_value(where, 0.0, limits)
    low = tf.minimum(tf.floor(where), tf.maximum(limits - 1.0, 0.0))
    part = tf.cast(where - low, image.dtype)
    low = tf.cast(low, tf.int32)
    high = tf.minimum(low + 1, sizes[1:3] - 1)

    def at(rows: Any, columns: Any) -> Any:
        return tf.gather_nd(image, tf.stack([rows, columns], axis=-1), batch_dims=1)

    down, right = part[..., 0:1], part[..., 1:2]
    top = at(low[..., 0], low[..., 1]) * (1 - right) + at(low[..., 0], high[..., 1]) * right
    bottom = at(high[..., 0], low[..., 1]) * (1 - right) + at(high[..., 0], high[..., 1]) * right
    result = top * (1 - down) + bottom * down
    result.set_shape(image.shape)
    return result


def create_random_warp_flow_2d(
    shape: Any, std: Any = None, scale: Union[float, Any] = 10.0, blur_std: float = 2.0, truncate: int = 1
) -> Any:
    """Return a smooth random flow for `dense_image_warp`: Gaussian noise, blurred by a Gaussian.

    :param shape: (batch, height, width)
    :param std: of the noise before it is blurred, a number or one for height and one for width
        (default: 1)
    :param scale: the flow is multiplied by it
    :param blur_std: width of the blur, in pixels
    :param truncate: the blur reaches ``truncate * blur_std`` pixels to each side
    :return: [batch, height, width, 2]
    """
    batch, height, width = (shape[i] for i in range(3))
    noise = tf.random.normal([batch, height, width, 2])
    if std is not None:
        noise *= tf.cast(tf.convert_to_tensor(std), noise.dtype)
    flow = _blurred(noise, blur_std, max(int(truncate * blur_std + 0.5), 1))
    return flow * tf.cast(tf.convert_to_tensor(scale), flow.dtype)


def _blurred(x: Any, std: float, reach: int) -> Any:
    """Blur each channel along height and width by a normalised Gaussian."""
    positions = tf.range(-reach, reach + 1, dtype=x.dtype)
    weights = tf.exp(-0.5 * tf.square(positions / std))
    weights /= tf.reduce_sum(weights)
    for axes in ([-1, 1, 1, 1], [1, -1, 1, 1]):
        kernel = tf.tile(tf.reshape(weights, axes), [1, 1, x.shape[-1], 1])
        x = tf.nn.depthwise_conv2d(x, kernel, strides=_ONES, padding="SAME")
    return x


_ONES: Sequence[int] = (1, 1, 1, 1)

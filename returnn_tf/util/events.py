"""Values in event files, for TensorBoard, which need not be installed.

``tf.summary.scalar`` and ``tf.summary.image`` are parts of TensorBoard, and TensorFlow does not bring it since 2.21.
"""

from __future__ import annotations

from typing import Any

from returnn_tf.util.lazy_tf import tf


def write_scalar(tag: str, value: Any, step: int) -> None:
    """Write a number to the default writer."""
    _write("scalars", tag, tf.cast(value, tf.float32), step)


def write_images(tag: str, images: Any, step: int) -> None:
    """Write pictures to the default writer.

    :param images: between 0 and 1 [pictures, height, width, 1, 3 or 4]
    """
    pixels = tf.image.convert_image_dtype(images, tf.uint8, saturate=True)
    size = [tf.strings.as_string(tf.shape(pixels)[axis]) for axis in (2, 1)]
    _write("images", tag, tf.stack([*size, *(tf.io.encode_png(picture) for picture in pixels)]), step)


def _write(plugin: str, tag: str, value: tf.Tensor, step: int) -> None:
    proto = tf.compat.v1.SummaryMetadata
    metadata = proto(plugin_data=proto.PluginData(plugin_name=plugin))
    tf.summary.write(tag, value, step=step, metadata=metadata)

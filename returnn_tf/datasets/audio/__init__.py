"""Audio: decoding of files, and features. Needs the packages of the extra ``audio`` (soundfile, scipy)."""

from returnn_tf.datasets.audio.decode import read_audio
from returnn_tf.datasets.audio.features import AudioFeatures

__all__ = ["AudioFeatures", "read_audio"]

"""The name of RETURNN for the module that RASR imports."""

from returnn_tf.rasr.interface import *  # noqa: F403

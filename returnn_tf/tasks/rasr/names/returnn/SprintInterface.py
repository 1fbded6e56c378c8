"""The name of RETURNN for the module that RASR imports."""

from returnn_tf.tasks.rasr.interface import *  # noqa: F403

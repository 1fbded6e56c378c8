"""This program inside of RASR, which imports `returnn_tf.tasks.rasr.interface` and calls it."""

ERROR_TOPIC = "rasr"

"""Stand-ins for the modules of RETURNN that configs import; see `returnn_tf.config.compat_modules`."""

ERROR_TOPIC = "code-in-configs"

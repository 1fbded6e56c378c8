"""Stand-ins for the modules of RETURNN that configs import; see `returnn_tf.compat.imports.stand_ins`."""

"""Import statements in configs: stand-ins for modules of RETURNN, see `returnn_tf.compat.modules`."""

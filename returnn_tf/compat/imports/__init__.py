"""What import statements in configs find: stand-ins for modules of RETURNN, see `returnn_tf.compat.modules`."""

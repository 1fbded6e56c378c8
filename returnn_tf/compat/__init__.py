"""What configs import from the modules of RETURNN, under the same names; see `returnn_tf.config.foreign_modules`."""

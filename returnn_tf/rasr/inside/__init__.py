"""Training and forwarding that RASR calls by `returnn_tf.rasr.interface`."""

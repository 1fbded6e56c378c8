"""What RASR calls by `returnn_tf.rasr.interface`: training and forwarding."""

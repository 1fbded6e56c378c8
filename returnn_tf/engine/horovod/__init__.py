"""Training with several processes by Horovod: what `returnn_tf.engine.distributed.world` and the trainer need for it."""

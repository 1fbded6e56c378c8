"""Training, evaluation and search: data, passes, updates, checkpoints, distribution over processes."""

from returnn_tf.logging.log import log

log.attach()

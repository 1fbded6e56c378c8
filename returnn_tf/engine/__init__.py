"""Training, evaluation and search: data, passes, updates, checkpoints, distribution over processes."""

from returnn_tf.logging.log import log

ERROR_TOPIC = "settings"
log.attach()

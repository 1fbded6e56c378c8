"""Training, evaluation and search: data, passes, updates, checkpoints, distribution over processes."""

ERROR_TOPIC = "settings"

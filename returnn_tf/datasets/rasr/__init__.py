"""RASR: its archives of features and alignments, and datasets that it computes."""

ERROR_TOPIC = "rasr"

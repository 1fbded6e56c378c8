"""How the sequences of an epoch are cut and joined into batches."""

ERROR_TOPIC = "batches"

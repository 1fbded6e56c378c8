"""HDF files: reading, writing, the dataset."""

ERROR_TOPIC = "data-files"

"""HDF files: reading, writing, the dataset."""

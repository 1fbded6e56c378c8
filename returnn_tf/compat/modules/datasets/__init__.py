"""The modules of RETURNN's datasets."""

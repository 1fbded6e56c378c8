"""What ``returnn-tf check`` looks at: the parts of a config, and what is old in it."""

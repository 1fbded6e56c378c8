"""The tasks of the command line, one module each; `registry` discovers them."""

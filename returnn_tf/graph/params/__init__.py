"""Parameters of layers: those of other layers that are reused, and the names in expressions for initial values."""

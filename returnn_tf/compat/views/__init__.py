"""Views of layers, their outputs and networks for user code, under the names that such code uses."""

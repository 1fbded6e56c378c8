"""The compiler: from the network dictionary to a plan, and from the plan to a TensorFlow graph."""

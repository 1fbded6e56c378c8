"""The emitted loop: its nodes, inputs, states and hypotheses."""

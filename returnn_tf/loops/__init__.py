"""The emitted loop: its nodes, inputs, states and hypotheses."""

ERROR_TOPIC = "loops"

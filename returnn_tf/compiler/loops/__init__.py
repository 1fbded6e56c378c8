"""The network inside a `rec` layer: which layers must run step by step, and how all of them are planned."""

ERROR_TOPIC = "loops"

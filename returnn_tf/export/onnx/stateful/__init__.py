"""Single steps of a loop as ONNX models, as RASR's ``stateful-onnx`` label scorer runs them."""

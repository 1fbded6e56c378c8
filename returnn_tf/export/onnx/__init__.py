"""The target ``onnx``."""

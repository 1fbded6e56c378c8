"""The target ``sherpa-onnx``: models of CTC for the servers and apps of sherpa-onnx."""

"""The target ``sherpa-onnx``: models of CTC and transducers for the servers and apps of sherpa-onnx."""

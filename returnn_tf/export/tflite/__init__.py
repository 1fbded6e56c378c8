"""The target ``tflite``."""

"""The target ``saved_model``."""

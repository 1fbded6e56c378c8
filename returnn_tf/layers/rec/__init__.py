"""Recurrent layers."""

ERROR_TOPIC = "options"

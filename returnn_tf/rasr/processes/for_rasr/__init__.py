"""Modules that run beside or inside RASR, which need only numpy and the standard library."""

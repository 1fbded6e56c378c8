"""What runs beside or inside RASR: modules that need only numpy and the standard library."""

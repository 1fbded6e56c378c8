"""Random numbers as layers, and layers that change their input at random."""

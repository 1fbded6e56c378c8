"""Functions on signals: Fourier transforms, complex numbers, segments."""

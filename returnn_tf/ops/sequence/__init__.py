"""Functions on label sequences and lattices: CTC, automata, transducers, edit distance, beams."""

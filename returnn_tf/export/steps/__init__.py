"""One step of a loop as a graph for an outer search, and a search in Python that uses such a graph."""

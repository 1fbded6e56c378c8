"""Graphs with the names and collections that decoders know from ``compile_tf_graph.py`` of RETURNN."""

"""The layer classes and losses, in folders by topic."""

# The compiler makes layers of this class, so that it is on the floor below.
from returnn_tf.graph.source import SourceLayer as SourceLayer

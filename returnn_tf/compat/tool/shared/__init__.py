"""What several tools share: their dataset, its sequences, and text files."""

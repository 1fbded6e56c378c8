"""What runs of training left behind, for the commands that compare and report."""

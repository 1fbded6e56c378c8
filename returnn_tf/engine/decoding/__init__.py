"""Decoders: from the scores of labels per frame to labels and words. No TensorFlow."""

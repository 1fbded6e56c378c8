"""Tests of returnn_tf.datasets."""

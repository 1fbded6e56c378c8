"""Tests of texts: post-processing, corpora for language models, parallel corpora."""

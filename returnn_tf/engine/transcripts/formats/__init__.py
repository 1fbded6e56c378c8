"""The formats in which transcripts are written, a module each."""

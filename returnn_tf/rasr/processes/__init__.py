"""RASR as a child process: its command line, and what both say to each other."""

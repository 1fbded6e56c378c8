"""What is recorded of a run: status, summaries, profiles, failed steps."""

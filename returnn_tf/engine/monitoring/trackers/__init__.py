"""Programs that record runs, and show and compare them: one registered class each."""

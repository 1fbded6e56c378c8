"""Records of a run: status file, event files, profiles, failed steps."""

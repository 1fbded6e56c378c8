"""Native ops of search and alignment."""

"""Native ops of linear recurrences."""

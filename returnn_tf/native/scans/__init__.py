"""Native ops of recurrences over time: linear ones, and that of the sLSTM."""

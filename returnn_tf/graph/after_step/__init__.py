"""What a task does with the values of layers after each step: files, logs, a second update, states for the next one."""

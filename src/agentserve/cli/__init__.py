"""The composition root: arguments, wiring, signals, exit codes."""

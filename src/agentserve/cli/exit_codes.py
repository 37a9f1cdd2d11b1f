"""Exit statuses of the command line, for people who script it."""

OK = 0
ERROR = 1
"""Something could not be done; one sentence on standard error says what."""
USAGE = 2
"""Wrong arguments, or `presets validate` found a problem."""
ENGINE_FAILED = 3
"""`serve`: the engine did not start, or died."""

"""Exit statuses of the command line, for people who script it."""

OK = 0
ERROR = 1
"""Something could not be done; one sentence on standard error says what."""
USAGE = 2
"""Wrong arguments, or `presets validate` found a problem."""
READER_GONE = 141
"""Whoever read standard output closed it before the end, as `head` does; 128 + SIGPIPE."""
ENGINE_FAILED = 3
"""`serve`: the engine did not start, or died."""

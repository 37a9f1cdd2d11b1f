"""Files of the user's and of ours, read into domain values.

Knows paths, TOML and what a person may get wrong in it. Must not know engine, screen or NVML.
"""

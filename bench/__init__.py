"""Measures what the screen, an idle app and a switch cost; run it as `python -m bench`.

Everything is a ratio to the plain vLLM server with the same arguments, or a figure of the app
alone, because absolute figures belong to the machine. The package belongs to the repository and is
not shipped.
"""

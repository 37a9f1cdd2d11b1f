"""The one package that imports vLLM and torch.

Importing the package, or its `backend` module, imports neither: both take seconds and hundreds of
MiB, and are loaded only once a start was asked for. `compat` is the one place that knows
differences between vLLM versions.
"""

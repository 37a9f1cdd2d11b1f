"""The engine: starting, serving, watching and ending it.

Only the sub-package `agentserve.engine.vllm` imports vLLM or torch, and only once a start was asked
for. Nothing here knows Textual, telemetry or configuration files.
"""

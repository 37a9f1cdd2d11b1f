"""Frozen values, arithmetic and the state machine: no I/O, no clock, no Textual, no vllm."""

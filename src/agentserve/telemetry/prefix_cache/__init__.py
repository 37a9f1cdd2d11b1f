"""Replays what happens to the prefix cache and predicts what a prompt reuses from it.

Owns the map of resident blocks, vLLM's rules of lookup, and who lost what to whom. It must not
know sessions, tokens or texts: blocks are known by their hashes, requests by the engine's ids.
"""

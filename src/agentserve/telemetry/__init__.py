"""What is measured while the product runs, and the one snapshot made of it.

Knows the domain only: not the engine, not the configuration, not the screen.
"""

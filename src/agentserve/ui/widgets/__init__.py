"""Widgets that write to the screen only what changed."""

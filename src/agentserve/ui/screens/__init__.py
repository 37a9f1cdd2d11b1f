"""Screens, each beside its style sheet."""

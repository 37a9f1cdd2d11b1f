"""Tests of the user interface against a scripted product."""

"""agentserve-tui: a terminal control panel for a local coding-agent server."""

__version__ = "0.1.0"

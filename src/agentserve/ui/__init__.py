"""The terminal user interface: draws domain values and sends requests, nothing else."""

"""Which session a request belongs to, and what it reused of the prefix cache and why."""

"""The Python client: what a process that does not hold the store uses to reach the one that does."""

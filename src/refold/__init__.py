"""refold runs multi-step agent work and never loses it. See docs/ARCHITECTURE.md for the code map."""

__version__ = "0.1.0"

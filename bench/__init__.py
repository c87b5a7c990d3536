"""Benchmarks behind `scripts/bench`: refold in process against the raw cost of its commits, in one interleaved run."""

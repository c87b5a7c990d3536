"""What moves Runs: activations, drivers and their supervisor, agents and their reaper, sweeps, the clock."""

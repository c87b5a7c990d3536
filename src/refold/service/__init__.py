"""What refold does, door by door agnostic: Tasks, Runs, Sessions, Blueprints and commands, put together in `app`."""

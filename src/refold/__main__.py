"""`python -m refold`: the commands, where the console script is not on the PATH."""

from refold.cli.main import main

main()

"""The command line: `main` and one file per group of commands. Data goes to stdout, talk to stderr."""

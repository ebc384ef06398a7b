"""The commands: parse the command line, call, print."""

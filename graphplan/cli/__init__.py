"""The command line: one command, sub-commands that each read and write one file."""

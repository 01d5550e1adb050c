"""The command line: one file per command. Heavy imports are inside command bodies, so that ``--help`` is quick."""

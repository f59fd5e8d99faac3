"""What the tests share: cluster names and lives, the engine's view of a cluster, commands, jobs.

Tests use slurmbed's commands and its public names. What is not public is in internals.py alone.
"""

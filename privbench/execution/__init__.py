"""Running cells: jobs on worker processes, one seed of a cell from observation to scores, and running a record again.

May import records/ and what stands below it; attacks and defences only by name, through the registry.
"""

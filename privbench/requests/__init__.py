"""What a command line or a Python call asks for, and the specifications that it becomes.

May import execution/ and what stands below it; names attacks and defences as text alone.
"""

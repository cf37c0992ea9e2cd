"""What a command line or a Python call asks for, and the specifications that it becomes.

May import execution/ and what lies below it; names attacks and defences by text alone.
"""

"""What the server sees of a trained run: the victims' uploads, the number format they come in, and what else an attacker may know.

May import training/ and what lies below it; derives everything from what the method declares to share.
"""

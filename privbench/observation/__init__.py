"""What the server sees of a trained run: the uploads of victims, their number format, and what else an attacker may know.

May import training/ and what stands below it; derives everything from what the method declares to share.
"""

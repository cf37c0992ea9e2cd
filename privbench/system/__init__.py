"""Files, processes, signals, locks and the terminal of one machine; nothing here knows of learning.

May import errors, seeds and tensors of privbench/ alone.
"""

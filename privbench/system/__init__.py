"""Files, processes, signals, locks and the terminal of one machine; nothing here knows of learning.

May import tensors, seeds, version and errors of privbench/ alone, so that everything may import it.
"""

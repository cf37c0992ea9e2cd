"""One backbone a file: what its features are, an extractor and a classifier.

`privbench.networks.model` names them. May import privbench/networks/layers.py, normalisation.py and what stands below networks.
"""

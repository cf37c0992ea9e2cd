"""What attacks of every kind use: the inversion problem, distances, priors, optimisers, labels, failed uploads.

May import privbench/; imports no other folder of attacks/ and no attack.
"""

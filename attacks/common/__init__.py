"""What attacks of every kind use: the inversion problem, distances, priors, batched optimisers, labels, failed uploads.

May import privbench/execution/ and what stands below it; imports no other folder of attacks/ and no attack.
"""

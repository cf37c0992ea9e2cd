"""What attacks of every kind use: the problem of one victim, distances, priors, optimisers, labels, failed uploads.

Never imports an attack.
"""

"""Descends one phase's losses over R replicas (clients, or servers of several seeds): alone, or stacked.

Both paths evaluate the same loss and the same optimiser: alone.py takes one replica after the other through plain autograd (fastest
on a CPU), stacked.py all at once through vmap(grad) (fastest on a GPU). Tests hold them equal, in double precision, to each other
and to a plain torch.nn loop. In single precision their rounding differs, and where training amplifies it, as that of generators
does, so do the networks after some rounds.

plan.py           what an epoch is run on: mini-batches, draws, what a loss may see besides
descent.py        Adam and SGD
frozen_passes.py  what losses take from networks that nobody trains, of many mini-batches at once
stage_state.py    a stage's parameters and moments, laid end to end; its loss as a pure function
"""

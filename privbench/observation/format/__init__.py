"""What a curious server holds, as files: an index (JSON) and one safetensors file per round (docs/observation_format.md).

index.json              the set-up, and of every round its messages, tensors, sizes and digests; written last
round-0007.safetensors  what went down and came up in that round

A folder without its index is no observation. Reading one checks the index by itself, then the declared tensors against the
declared networks, then each file against the index, all of it before a tensor is allocated. May import what stands below
privbench/observation/, and no other file of it.
"""

"""The committed tables by name: their records are docs/results/records/<name>.jsonl.xz."""

PHOTOS, PAPERS_ATTACK, SECURE_GAN, META = "quick-photos", "papers-attack", "securegan", "meta"
DEFENCES, IMPRINT, COUNTERMEASURES = "defences", "imprint-on-the-wire", "countermeasures"
INFERENCE, PROPERTY = "inference", "property-inference"
# Attacks by what they know, in the quick preset.
LADDER, DIGITS, CIFAR10_LADDER = "ladder-photos", "ladder-digits", "ladder-cifar10"
# FedAvg and Local of the last of them.
QUICK = "quick-cifar10"
# The published schedule: how accurate its methods are, and their ladders.
CIFAR10, TRAINED, CIFAR10_FURTHER = "published-cifar10", "published-ladder", "published-cifar10-further"
OFFICE, OFFICE_TRAINED, OFFICE_FURTHER = (
    "published-office10",
    "published-office10-ladder",
    "published-office10-further",
)
# What was trained by that schedule -> the tables with seeds of it, those of its pages before those that were made since.
ALL_SEEDS = {CIFAR10: (CIFAR10, CIFAR10_FURTHER, TRAINED), OFFICE: (OFFICE, OFFICE_FURTHER, OFFICE_TRAINED)}
# Private extractors under noise of growing variance.
NOISE_LEVELS = "noise-levels"
# FedAvg by that schedule under noise on every local step.
NOISE_ON_STEPS = "noise-on-steps"
# What the ladder leaves out by default, on the private extractors of `digits`.
LEFT_OUT = "ladder-left-out"
LADDERS = (LADDER, DIGITS, CIFAR10_LADDER, TRAINED, OFFICE_TRAINED)
# Private extractors: against how many images are known, how many auxiliary ones there are, and which rounds' uploads were kept.
KNOWN_IMAGES, AUXILIARY_IMAGES, EARLIER_ROUNDS = "known-images", "auxiliary-images", "earlier-rounds"
# And where the fit to known images begins.
CALIBRATED_STARTS = "calibrated-starts"
# `chained` on FedSplit, Office-Caltech10, from uploads of round 0 alone; the ladder has it from uploads of many rounds.
FIRST_ROUND = "office10-first-round"
# The reverse, on `digits`: uploads of every other round that the ladder keeps.
LATER_ROUNDS = "chained-later-rounds"
# Two attacks on private extractors under a prior learned from auxiliary images.
LEARNED_PRIOR = "learned-prior"
# Mode, draws and means of draws of an image under noise, without that prior and with it.
POSTERIOR_MEAN = "posterior-mean"
# `joint` from more uploads, with another alignment, and on whole updates.
JOINT = "joint-variants"
# Servers that craft what they send, against batches and secure sums.
ACTIVE = "active-servers"

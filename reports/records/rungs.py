"""The rungs of the attack ladder, from the attacker who knows least: what each adds, in words.

An attack's class names its rung (`rung`). Imports nothing, so that listings can use it at once.
"""

RUNGS = {
    "L0": "nothing: the floors",
    "L1": "what the method sends, attacked as the papers do",
    "L2": "the same, used better; some attacks know what photographs in general are like, an inference of membership has "
    "candidate images",
    "L3": "+ the networks with which clients started",
    "L4": "+ auxiliary images",
    "L5": "+ auxiliary images and, where there are any, the generator or the initial networks",
    "L6": "+ a colluding client, known images of the victim's client, or its uploads of earlier rounds",
    "L7": "the server sends crafted networks",
    "L8": "the oracle: the victim's networks; a reference, no attacker",
}

"""How large anything in a capture may be: limits for files from strangers, far above what an honest training loop writes.

A limit that something honest meets is raised here, nowhere else.
"""

INDEX_BYTES = 2**26  # a message takes 300 bytes, so that 1,000 rounds of 200 clients fit
INDEX_DEPTH = 10  # of the JSON; an index has 8 levels
ROUNDS = 100_000  # in one capture
ROUND = 10**9  # the number of a round
ROUND_BYTES = 2**34  # of one round's file: 16 GiB, 350 clients' messages of ResNet-18
LAYOUTS = 4_096  # unlike sets of tensors in one capture
MESSAGES = 65_536  # in one round
CLIENT = 2**64  # a client's number is below: Flower numbers its nodes with 64 bits
CLIENTS = 100_000  # whose data one message holds
EXAMPLES = 2**40  # behind one message
STEPS = 10**9  # local steps behind one message
TENSORS = 2**18  # in one round
SIDE = 2**40  # of a tensor, along one dimension
NAME = 300  # letters of a name
METRICS = 256  # names beside the tensors of one message
NUMBERS = 65_536  # under one such name
SETTINGS = 64  # of an optimiser

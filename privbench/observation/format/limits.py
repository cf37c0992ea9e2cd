"""How large anything in an observation may be: limits for files from strangers, far above what any preset makes.

The largest observation of a preset is that of ResNet-18 with 64 victims: 64 gradients of 11.2 million numbers, 2.9 GB. The largest
classification is DomainNet's, 345 classes; EMNIST has 62. A limit that something honest meets is raised here, nowhere else.
"""

INDEX_BYTES = 2**24  # an entry of a ResNet-18 round takes 2^15, so that 500 rounds fit
INDEX_DEPTH = 16  # of the JSON; an index has 8 levels
ROUNDS = 10_000  # in one observation
ROUND = 1_000_000  # the number of a round
ROUND_BYTES = 2**36  # of one round's file: 64 GiB, twenty times the largest
TABLES = 64  # of messages in one round
MESSAGES = 65_536  # in one table
CLIENTS = 100_000  # a client's number is below
CLASSES = 10_000  # a conditional generator embeds each class in as many numbers: 10^8 of them here
CHANNELS = 64  # of an image: 3 of a photograph, 13 of a satellite's
SIDE = 1_024  # of an image, in pixels
BATCH_SIZE = 4_096  # images behind one message
# What an attack returns is one image for every image behind a message: 4 GiB of float32. 64 victims of 16 images of 3x64x64 take
# some 2^24 numbers.
PIXELS = 2**30
STEPS = 100_000  # local steps behind an update, which some attacks repeat; 20 epochs of 60,000 images in batches of 16 are 75,000
PROXIMAL = 1e6  # mu of a proximal term; FedProx searches up to 1
IMITATED = 1_000_000  # features of a generator behind a message
SAMPLES = 2**40  # images of one class at one client, as its label counts say
BOTTLENECK = 65_536  # numbers in the bottleneck of a classifier; PRECODE's has 256
PARAMETERS = 2**28  # of one network: 1 GiB of float32; ResNet-18 has 2^23.4
TENSORS = 65_536  # in one round
NAME = 300  # letters of a name
SETTINGS = 64  # of a defence
# Of a quantised entry: with one bit there is no level above zero, and float32 has no more than 32.
LEAST_BITS, BITS = 2, 32

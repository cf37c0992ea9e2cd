"""Networks as pure functions, written for one model: `net.apply(params, buffers, inputs, train=...) -> (output, buffers)`.

`model.Model` names the networks of one run; a backbone is a module with an extractor and a classifier. May import base modules
alone: hyperparameters, system/, tensors, errors.
"""

"""One file per federated algorithm: what it shares, and its stages."""

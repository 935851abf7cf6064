"""`qwen4_exp`: hyper-connections, Gated DeltaNet, sparse attention, n-gram features, mixture of experts, MTP.

Read `trunk.py` first: it is the forward pass. `config.py` is the geometry, `tensors.py` what a checkpoint must
hold, `weights.py` how that is placed on a backend, `ngrams.py` the hash.
"""

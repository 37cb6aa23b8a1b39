"""Differential fuzzers of the decoders: each protocol has a module with an encoder and an oracle of its own."""

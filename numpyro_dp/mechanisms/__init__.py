"""Private primitives in pure JAX: each module is one theorem made executable."""

from numpyro_dp.mechanisms.private_sum import PrivateSum
from numpyro_dp.mechanisms.random import CHACHA20, os_key, scrubbed, word_pairs
from numpyro_dp.mechanisms.sparse_sum import SparsePrivateSum, Touched

__all__ = [
    "CHACHA20",
    "PrivateSum",
    "SparsePrivateSum",
    "Touched",
    "os_key",
    "scrubbed",
    "word_pairs",
]

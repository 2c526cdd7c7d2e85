"""Private primitives in pure JAX: each module is one theorem made executable."""

from numpyro_dp.mechanisms.private_sum import PrivateSum
from numpyro_dp.mechanisms.random import CHACHA20, os_key, scrubbed, word_pairs

__all__ = ["CHACHA20", "PrivateSum", "os_key", "scrubbed", "word_pairs"]

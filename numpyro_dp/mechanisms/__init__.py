"""Private primitives in pure JAX: each module is one theorem made executable."""

from numpyro_dp.mechanisms.private_sum import PrivateSum as PrivateSum
from numpyro_dp.mechanisms.random import (
    CHACHA20 as CHACHA20,
    os_key as os_key,
    scrubbed as scrubbed,
    word_pairs as word_pairs,
)
from numpyro_dp.mechanisms.sparse_sum import (
    SparsePrivateSum as SparsePrivateSum,
    Touched as Touched,
)

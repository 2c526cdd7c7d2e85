"""Exact laws read back from the stored words of a table."""

import numpy as np


def stored_weights(table) -> list[int]:
    """Integer weights out of 2^63 that the words of ``table`` realise."""
    columns, low_bits = 1 << table.bits, 31 - table.bits
    capacity = 1 << (63 - table.bits)
    weights = [0] * columns
    for i, (limit, packed) in enumerate(
        zip(table.limit.tolist(), table.packed.tolist(), strict=True)
    ):
        keep = limit << low_bits | packed & ((1 << low_bits) - 1)
        weights[i] += keep
        weights[packed >> low_bits] += capacity - keep
    return weights


def random_words(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(0, 1 << 32, (2, n), dtype=np.uint32))

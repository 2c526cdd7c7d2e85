"""Chains spread over devices, the records copied to each."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

__all__ = ["over_devices"]


def over_devices(num_chains: int) -> tuple[NamedSharding, NamedSharding]:
    """Shardings that give each of ``num_chains`` devices one chain, and all of them everything."""
    mesh = Mesh(np.array(jax.local_devices()[:num_chains]), ("chains",))
    return NamedSharding(mesh, PartitionSpec("chains")), NamedSharding(mesh, PartitionSpec())

"""Versions of the packages a privacy figure depends on, without importing them."""

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("numpyro-dp", "dp-accounting", "numpy", "scipy", "jax", "numpyro")


@lru_cache(maxsize=1)
def _installed() -> tuple[tuple[str, str], ...]:
    found = []
    for package in _PACKAGES:
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return tuple(found)


def versions() -> dict[str, str]:
    """Return the installed version of every package that matters, by name."""
    return dict(_installed())

"""Shared fixtures: shared data by path, one set of compiled models for the whole run."""

import contextlib
import gc
import itertools
import os
import time
import zlib
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
import pytest

from numpyro_dp._quick_compile import known_flags


def pytest_configure(config: pytest.Config) -> None:
    """Compile quickly in the default run; the slow tests run under the user's compiler.

    Compiling is most of a default run's time: most programs run a few steps once. ``XLA_FLAGS``,
    even empty, is left as it is: CI runs the releases again with it empty.
    """
    if config.option.markexpr != "not slow":
        return
    if "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = known_flags()
    # Tests compile many programs alike, and the next run compiles them again.
    # ``pytest --cache-clear`` empties it.
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.fixture
def no_compilation_cache():
    """As users run: with a cache, plain ``numpyro.infer.MCMC`` is warned of."""
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", before)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Past the time that CI has for slow tests, say which of them were not reached."""
    until = os.environ.get("NUMPYRO_DP_UNTIL")
    if until and time.time() > float(until):
        pytest.skip(f"not reached in time: {item.nodeid}")


@contextlib.contextmanager
def _keys_of(name: str):
    """Keys of the operating system, made from a name: what passes passes again."""
    words = np.random.default_rng(zlib.crc32(name.encode())).bytes
    with mock.patch(_ENTROPY, SimpleNamespace(token_bytes=words)):
        yield


_ENTROPY = "numpyro_dp.mechanisms.random.secrets"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    with _keys_of(item.nodeid):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest):
    """What several tests share hangs on none of them: any may be the first that asks for it."""
    if fixturedef.scope == "function":
        return (yield)
    with _keys_of(f"{fixturedef.baseid}::{fixturedef.argname}"):
        return (yield)


# JAX makes many small objects that stay: looking through them all over again, at Python's own rate,
# takes one second in twenty.
gc.set_threshold(100_000, 20, 50)

# Each compiled program maps a few pieces of memory, and Linux ends a process that wants more than
# 65,530: XLA then dies in the middle of a test. Slow tests add up to a thousand each.
_MANY_MAPPINGS, _TESTS = 30_000, itertools.count(1)


@pytest.fixture(autouse=True)
def _few_mappings():
    yield
    maps = Path("/proc/self/maps")
    # Counting takes some milliseconds.
    if next(_TESTS) % 10 or not maps.exists():
        return
    if maps.read_bytes().count(b"\n") > _MANY_MAPPINGS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder of the shared data sets, named by NUMPYRO_DP_DATA; tests skip without it."""
    folder = os.environ.get("NUMPYRO_DP_DATA")
    if not folder:
        pytest.skip("NUMPYRO_DP_DATA is unset: it names the folder of the benchmark data sets")
    return Path(folder)


@pytest.fixture(autouse=True)
def _progress_bars_allowed(monkeypatch):
    # NumPyro switches its bars off where CI is set, and the bar is part of what is tested.
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


@pytest.fixture(scope="session")
def records() -> dict[str, np.ndarray]:
    """400 records of a logistic regression with three inputs."""
    rng = np.random.default_rng(20)
    x = np.concatenate([np.ones((400, 1)), rng.uniform(-1, 1, (400, 2))], axis=1)
    y = rng.random(400) < 1 / (1 + np.exp(-x @ np.array([0.3, -1.0, 1.5])))
    return {"x": x.astype(np.float32), "y": y.astype(np.int32)}

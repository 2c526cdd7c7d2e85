"""Flags are asked of XLA before they are set: the next release may not know them."""

import os
import subprocess
import sys

import jax.numpy as jnp
import pytest

from numpyro_dp import _quick_compile


@pytest.fixture
def unknown(monkeypatch):
    """One option that no XLA knows, among those wanted."""
    wanted = {**_quick_compile._WANTED, "xla_no_such_option": True}
    monkeypatch.setattr(_quick_compile, "_WANTED", wanted)
    _quick_compile.known_options.cache_clear()
    yield
    _quick_compile.known_options.cache_clear()


def test_an_option_that_xla_does_not_know_is_left_out(unknown):
    known = _quick_compile.known_options()
    assert "xla_backend_optimization_level" in known
    assert "xla_no_such_option" not in known
    compiled = _quick_compile.quickly_compiled(lambda x: x + 1, jnp.float32(1))
    assert compiled(jnp.float32(1)) == 2


def test_what_the_caller_says_in_xla_flags_stands(monkeypatch):
    _quick_compile.light_options.cache_clear()
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    light = _quick_compile.light_options()
    assert "xla_backend_optimization_level" not in light
    assert light["xla_cpu_parallel_codegen_split_count"] == "1"
    _quick_compile.light_options.cache_clear()


@pytest.mark.slow  # A default run itself is such a process: it would end.
def test_known_flags_start_a_process_and_others_end_it():
    def start(flags):
        ask = [sys.executable, "-c", "import jax; jax.devices()"]
        env = {**os.environ, "XLA_FLAGS": flags}
        return subprocess.run(ask, env=env, capture_output=True).returncode

    flags = _quick_compile.known_flags()
    assert "--xla_llvm_disable_expensive_passes=true" in flags
    assert start(flags) == 0
    assert start(flags + " --xla_no_such_option=true") != 0
    light = _quick_compile.known_flags("light_options")
    assert "--xla_backend_optimization_level=1" in light.split()
    assert start(light) == 0

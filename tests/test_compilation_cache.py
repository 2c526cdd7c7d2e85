"""Compiled programs on disk: where they are kept, and that they are."""

import stat
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

import numpyro_dp as ndp

NAMES = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture(autouse=True)
def restored():
    before = {name: jax.config.values[name] for name in NAMES}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_programs_are_kept_from_then_on_whatever_was_compiled_before(tmp_path):
    jax.jit(lambda x: x + 1)(jnp.ones(3)).block_until_ready()
    folder = ndp.enable_compilation_cache(tmp_path / "new" / "cache")
    assert folder == tmp_path / "new" / "cache"
    jax.jit(lambda x: x * 17)(jnp.ones(3)).block_until_ready()
    assert list(folder.glob("*-cache"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("platform", "variable", "place"),
    [
        ("linux", "XDG_CACHE_HOME", "numpyro_dp"),
        ("linux", "HOME", ".cache/numpyro_dp"),
        ("darwin", "HOME", "Library/Caches/numpyro_dp"),
        ("win32", "LOCALAPPDATA", "numpyro_dp"),
    ],
)
def test_the_default_is_the_platforms_own_place(platform, variable, place, tmp_path, monkeypatch):
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv(variable, str(tmp_path))
    assert ndp.enable_compilation_cache() == tmp_path / place
    assert (tmp_path / place).is_dir()


def test_a_folder_that_cannot_be_made_changes_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    before = jax.config.values["jax_compilation_cache_dir"]
    with pytest.raises(OSError, match="file"):
        ndp.enable_compilation_cache(tmp_path / "file" / "cache")
    assert jax.config.values["jax_compilation_cache_dir"] == before

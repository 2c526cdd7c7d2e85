"""Compiled programs on disk: where they are kept, and that they are."""

import os
import stat
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.infer
import pytest
from jax._src.compilation_cache import decompress_executable
from jax.experimental.compilation_cache import compilation_cache

import numpyro_dp as ndp
from numpyro_dp._compilation_cache import is_on, nothing_kept
from tests.models import logistic

ENABLED = "jax_enable_compilation_cache"
NAMES = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", ENABLED)


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


def test_a_folder_that_others_could_read_is_closed_to_them(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert stat.S_IMODE(ndp.enable_compilation_cache(folder).stat().st_mode) == 0o700


def test_a_folder_of_another_user_is_refused_and_changes_nothing(tmp_path, monkeypatch):
    before = jax.config.values["jax_compilation_cache_dir"]
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(PermissionError, match=r"another user.*give path= a folder of your own"):
        ndp.enable_compilation_cache(tmp_path)
    assert jax.config.values["jax_compilation_cache_dir"] == before


def kept(folder):
    return sorted(folder.glob("*-cache"))


def compile_another(number):
    jax.jit(lambda x: x * number)(jnp.ones(3)).block_until_ready()


def hits(number):
    """How many programs JAX finds in the cache when it has to compile this one again."""
    events = []

    def heard(event, **_):
        events.append(event)

    jax.clear_caches()
    jax.monitoring.register_event_listener(heard)
    try:
        compile_another(number)
    finally:
        jax.monitoring.unregister_event_listener(heard)
    return events.count("/jax/compilation_cache/cache_hits")


def test_nothing_is_kept_or_read_although_the_cache_is_open_already(tmp_path):
    folder = ndp.enable_compilation_cache(tmp_path)
    compile_another(101)
    before = kept(folder)
    assert before
    with nothing_kept():
        assert not is_on()
        compile_another(103)
        assert hits(101) == 0
    assert kept(folder) == before
    assert is_on()
    assert hits(101) > 0
    compile_another(107)
    assert len(kept(folder)) > len(before)


@pytest.mark.parametrize("first", [0, 1])
def test_runs_that_overlap_end_in_any_order(tmp_path, first):
    folder = ndp.enable_compilation_cache(tmp_path)
    runs = [nothing_kept(), nothing_kept()]
    for run in runs:
        run.__enter__()
    runs[first].__exit__(None, None, None)
    compile_another(109 + first)
    assert not kept(folder)
    runs[1 - first].__exit__(None, None, None)
    assert is_on()


def test_a_cache_that_was_off_stays_off(tmp_path):
    ndp.enable_compilation_cache(tmp_path)
    jax.config.update(ENABLED, False)
    with nothing_kept():
        pass
    assert not is_on()


# Numbers of records that nothing else has: odd, and two bytes as a protobuf varint.
RECORDS = 1237, 1239


def data(count):
    rng = np.random.default_rng(4)
    x = rng.uniform(-1, 1, (count, 2)).astype(np.float32)
    return x, (rng.random(count) < 0.5).astype(np.int32)


def settings(relation):
    return {
        "sampling_rate": 0.1,
        "clip_norm": 1.0,
        "noise_multiplier": 2.0,
        "accountant": ndp.Accountant(relation=relation),
        **({"max_records": 2000} if relation == "add_remove" else {}),
    }


def sgld(relation, **options):
    return ndp.DPSGLD(logistic, step_size=1e-4, **settings(relation), **options)


def private_sgld(relation, args):
    mcmc = ndp.MCMC(sgld(relation), num_warmup=1, num_samples=3, progress_bar=False)
    mcmc.run(jax.random.key(0), *args)
    mcmc.get_samples()


def private_svi(relation, args):
    guide = numpyro.infer.autoguide.AutoDiagonalNormal(logistic)
    svi = ndp.DPSVI(logistic, guide, optim=numpyro.optim.Adam(0.01), **settings(relation))
    svi.run(jax.random.key(0), 5, *args, progress_bar=False)


def forecast(relation, args):
    ndp.plan(sgld(relation), *args, num_steps=4)


def programs_of(folder, count):
    """The programs that hold a shape of so many rows: the number, where a dimension's begins."""
    number = bytes([count & 127 | 128, count >> 7])
    shapes = [b"\x1a" + bytes([2 + more]) + number for more in range(3)]
    texts = [decompress_executable(path.read_bytes()) for path in kept(folder)]
    return [text for text in texts if any(s in text for s in shapes) or b"[%d" % count in text]


@pytest.mark.parametrize("call", [private_sgld, private_svi, forecast])
def test_a_private_number_of_records_is_in_no_program_that_is_kept(call, tmp_path):
    private, public = RECORDS
    args, others = data(private), data(public)
    folder = ndp.enable_compilation_cache(tmp_path)
    call("add_remove", args)
    assert not programs_of(folder, private)
    assert is_on()
    call("zero_out", others)
    if call is not forecast:
        # The search finds what it looks for.
        assert programs_of(folder, public)


def test_plain_numpyro_refuses_a_private_number_of_records_while_there_is_a_cache(tmp_path):
    kernel = sgld("add_remove", num_steps=4)
    ndp.enable_compilation_cache(tmp_path)
    mcmc = numpyro.infer.MCMC(
        kernel, num_warmup=1, num_samples=3, progress_bar=False, jit_model_args=True
    )
    args = data(RECORDS[0])
    with pytest.raises(ValueError, match=r"replace numpyro\.infer\.MCMC by numpyro_dp\.MCMC"):
        mcmc.run(jax.random.key(0), *args)
    assert not kernel.accountant.entries
    jax.config.update(ENABLED, False)
    compilation_cache.reset_cache()
    mcmc.run(jax.random.key(0), *args)
    assert len(kernel.accountant.entries) == 1
    assert not programs_of(tmp_path, RECORDS[0])

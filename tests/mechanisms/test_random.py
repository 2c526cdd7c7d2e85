"""ChaCha20 against RFC 8439, and keys as JAX uses them."""

import pickle
import secrets

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from scipy.stats import chi2

from numpyro_dp.mechanisms import CHACHA20, os_key, scrubbed, word_pairs
from numpyro_dp.mechanisms.random import _chacha20_blocks

IMPLEMENTATIONS = ["threefry2x32", "rbg", CHACHA20]

# RFC 8439: key, block counter, nonce, state after the block function.
RFC_8439 = {
    "2.3.2": (
        bytes(range(32)),
        1,
        "000000090000004a00000000",
        "e4e7f110 15593bd1 1fdd0f50 c47120a3 c7f4d1c7 0368c033 9aaa2204 4e6cd4c3 "
        "466482d2 09aa9f07 05d7c214 a2028bd9 d19c12b5 b94e16de e883d0cb 4e3c50a2",
    ),
    "A.1 #1": (
        bytes(32),
        0,
        "00" * 12,
        "ade0b876 903df1a0 e56a5d40 28bd8653 b819d2bd 1aed8da0 ccef36a8 c70d778b "
        "7c5941da 8d485751 3fe02477 374ad8b8 f4b8436a 1ca11815 69b687c3 8665eeb2",
    ),
    "A.1 #2": (
        bytes(32),
        1,
        "00" * 12,
        "bee7079f 7a385155 7c97ba98 0d082d73 a0290fcb 6965e348 3e53c612 ed7aee32 "
        "7621b729 434ee69c b03371d5 d539d874 281fed31 45fb0a51 1f0ae1ac 6f4d794b",
    ),
}


def chacha(seed: int = 0):
    return random.key(seed, impl=CHACHA20)


@pytest.mark.parametrize("name", RFC_8439)
def test_block_function_is_that_of_the_rfc(name):
    key, counter, nonce, expected = RFC_8439[name]
    words = jnp.array(np.frombuffer(key, "<u4"))
    nonce_words = tuple(int(word) for word in np.frombuffer(bytes.fromhex(nonce), "<u4"))
    block = _chacha20_blocks(words, jnp.array([7, counter], jnp.uint32), nonce_words)[:, 1]
    assert [f"{word:08x}" for word in block.tolist()] == expected.split()


def test_uses_of_one_key_share_no_words():
    key = chacha()
    uses = {
        "bits": random.bits(key, (64,)),
        "split": random.key_data(random.split(key, 8)).ravel(),
        "fold": jnp.concatenate([random.key_data(random.fold_in(key, i)) for i in range(8)]),
        "key": random.key_data(key),
    }
    words = np.concatenate([np.asarray(use) for use in uses.values()])
    assert len(set(words.tolist())) == len(words)


def test_children_are_half_blocks():
    # All sixteen words of a block would let its key be solved for.
    key = chacha()
    block = _chacha20_blocks(random.key_data(key), jnp.arange(2, dtype=jnp.uint32), (0, 2, 0))
    np.testing.assert_array_equal(random.key_data(random.split(key)), block[:8].T)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**31 - 1])
def test_seeds_give_different_keys(seed):
    assert not np.array_equal(random.key_data(chacha(seed)), random.key_data(chacha(5)))


@pytest.mark.parametrize("width", [8, 16, 32])
def test_bits_have_the_width_asked_for(width):
    drawn = random.bits(chacha(), (3, 5), f"uint{width}")
    assert drawn.shape == (3, 5)
    assert drawn.dtype == jnp.dtype(f"uint{width}")


def test_64_bit_words_use_both_halves():
    with jax.enable_x64(True):
        drawn = np.asarray(random.bits(chacha(), (100,), "uint64"))
        wide_seed = random.key_data(random.key(2**40, impl=CHACHA20))
        narrow_seed = random.key_data(random.key(0, impl=CHACHA20))
    assert len(set((drawn >> 32).tolist())) == len(set((drawn & 0xFFFFFFFF).tolist())) == 100
    assert not np.array_equal(wide_seed, narrow_seed)


def test_chacha_bytes_are_uniform():
    # One chi-square test at 1e-6; the seed is fixed.
    counts = np.bincount(np.asarray(random.bits(chacha(3), (1 << 20,), jnp.uint8)), minlength=256)
    statistic = ((counts - 4096.0) ** 2 / 4096).sum()
    assert chi2.sf(statistic, 255) > 1e-6


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_word_pairs_are_distinct_words_under_jit_and_vmap(impl):
    keys = random.split(random.key(1, impl=impl), 3)
    batched = jax.jit(jax.vmap(lambda key: word_pairs(key, 21)))(keys)
    assert batched[0].shape == batched[1].shape == (3, 21)
    assert batched[0].dtype == batched[1].dtype == jnp.uint32
    words = np.concatenate([np.asarray(half).ravel() for half in batched])
    assert len(set(words.tolist())) == words.size
    if impl != "rbg":  # rbg does not promise the same bits under vmap
        single = word_pairs(keys[2], 21)
        np.testing.assert_array_equal(single[0], batched[0][2])
        np.testing.assert_array_equal(single[1], batched[1][2])


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("half", [0, 1])
def test_every_bit_of_a_word_pair_is_fair(impl, half):
    # 32 bits, |z| < 6: false alarm below 1e-7.
    n = 1 << 16
    words = np.asarray(word_pairs(random.key(2, impl=impl), n)[half])
    ones = ((words[:, None] >> np.arange(32, dtype=np.uint32)) & 1).sum(0)
    assert np.abs(ones - n / 2).max() < 6 * np.sqrt(n / 4)


def test_os_keys_are_fresh_and_independent():
    keys = os_key(3)
    assert keys.shape == (3,)
    assert os_key().shape == ()
    words = np.concatenate([np.asarray(random.key_data(k)).ravel() for k in (keys, os_key())])
    assert len(set(words.tolist())) == 32


def test_os_keys_come_from_the_operating_system(monkeypatch):
    """As users run: in tests, keys are made from the name of the test (`tests/conftest.py`)."""
    asked, honest = [], secrets.token_bytes
    monkeypatch.setattr(secrets, "token_bytes", lambda size: asked.append(size) or honest(size))
    monkeypatch.setattr("numpyro_dp.mechanisms.random.secrets", secrets)
    words = [np.asarray(random.key_data(os_key())).tobytes() for _ in range(2)]
    assert asked == [32, 32]
    assert words[0] != words[1]


@pytest.mark.parametrize(
    "transform", [jax.jit, jax.vmap, lambda f: lambda x: jax.lax.map(f, x), jax.make_jaxpr]
)
def test_os_key_is_refused_inside_transformations(transform):
    with pytest.raises(RuntimeError, match="on the host"):
        transform(lambda x: x + random.bits(os_key(), (), jnp.uint32))(jnp.zeros(2, jnp.uint32))


@pytest.mark.parametrize(
    "key", [random.key(3), random.split(chacha(3), 4), random.PRNGKey(3)], ids=str
)
def test_scrubbed_keys_keep_their_type_only(key):
    empty = scrubbed(key)
    assert empty.shape == key.shape
    assert empty.dtype == key.dtype
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    assert not np.any(np.asarray(random.key_data(empty) if typed else empty))


def test_chacha_keys_pickle():
    key = chacha(4)
    again = pickle.loads(pickle.dumps(key))
    assert again.dtype == key.dtype
    np.testing.assert_array_equal(random.key_data(again), random.key_data(key))

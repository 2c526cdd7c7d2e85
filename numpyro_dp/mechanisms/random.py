"""ChaCha20 as a JAX key implementation, and the random words of every mechanism.

The guarantees of this package hold for ideal random bits; with a generator they are
computational. ChaCha20 under a 256-bit key from the operating system is the default; threefry,
rbg and any other JAX key work too, with a guarantee conditional on the key.
"""

import math
import secrets

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jax.extend.random import define_prng_impl
from jaxtyping import Array, Key, UInt32

_KEY_WORDS = 8
_BLOCK_WORDS = 16
_DOUBLE_ROUNDS = 10
_SIGMA = tuple(int(word) for word in np.frombuffer(b"expand 32-byte k", np.dtype("<u4")))
# Second nonce word: what a block is for, so that no use of a key can meet another's blocks.
_BITS, _SPLIT, _FOLD, _SEED = 1, 2, 3, 4
# The state of JAX outside every transformation: a module is imported on the host.
_HOST = jax.extend.core.get_opaque_trace_state()


def _rotate(x: Array, by: int) -> Array:
    return (x << by) | (x >> (32 - by))


def _quarter_rounds(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array, Array, Array]:
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


def _double_round(_: Array, rows: tuple) -> tuple[Array, Array, Array, Array]:
    a, b, c, d = _quarter_rounds(*rows)
    b, c, d = jnp.roll(b, -1, 0), jnp.roll(c, -2, 0), jnp.roll(d, -3, 0)
    a, b, c, d = _quarter_rounds(a, b, c, d)
    return a, jnp.roll(b, 1, 0), jnp.roll(c, 2, 0), jnp.roll(d, 3, 0)


def _chacha20_blocks(
    key: UInt32[Array, "8"], counters: UInt32[Array, " blocks"], nonce: tuple[int, int, int]
) -> UInt32[Array, "16 blocks"]:
    """The ChaCha20 block function (RFC 8439 §2.3), one column a block.

    A loop over four rows of shape (4, blocks): unrolled, XLA on CPU recomputes shared terms and is
    five to twelve times slower.
    """
    blocks = counters.shape[0]
    constants = jnp.broadcast_to(jnp.array(_SIGMA, jnp.uint32)[:, None], (4, blocks))
    words = jnp.broadcast_to(key[:, None], (_KEY_WORDS, blocks))
    tail = jnp.broadcast_to(jnp.array(nonce, jnp.uint32)[:, None], (3, blocks))
    rows = (constants, words[:4], words[4:], jnp.concatenate([counters[None], tail]))
    mixed = lax.fori_loop(0, _DOUBLE_ROUNDS, _double_round, rows)
    return jnp.concatenate([row + start for row, start in zip(mixed, rows, strict=True)])


def _children(
    key: UInt32[Array, "8"], counters: UInt32[Array, " n"], domain: int
) -> UInt32[Array, "n 8"]:
    # Half a block: whoever holds a child knows nothing of its parent or siblings.
    return _chacha20_blocks(key, counters, (0, domain, 0))[:_KEY_WORDS].T


def _seed(seed: Array) -> UInt32[Array, "8"]:
    low = lax.convert_element_type(seed, jnp.uint32)
    high = lax.convert_element_type(
        lax.shift_right_logical(seed, jnp.asarray(32, seed.dtype)), jnp.uint32
    )
    material = jnp.zeros(_KEY_WORDS, jnp.uint32).at[0].set(low).at[1].set(high)
    return _children(material, jnp.zeros(1, jnp.uint32), _SEED)[0]


def _split(key: UInt32[Array, "8"], shape: tuple[int, ...]) -> Array:
    counters = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    return _children(key, counters, _SPLIT).reshape(*shape, _KEY_WORDS)


def _fold_in(key: UInt32[Array, "8"], data: Array | int) -> UInt32[Array, "8"]:
    counter = lax.convert_element_type(data, jnp.uint32)
    return _children(key, counter[None], _FOLD)[0]


def _random_bits(key: UInt32[Array, "8"], bit_width: int, shape: tuple[int, ...]) -> Array:
    size = math.prod(shape)
    words = 2 * size if bit_width == 64 else size
    counters = jnp.arange(-(-words // _BLOCK_WORDS), dtype=jnp.uint32)
    stream = _chacha20_blocks(key, counters, (0, _BITS, 0)).reshape(-1)[:words]
    if bit_width == 64:
        high, low = (half.astype(jnp.uint64) for half in (stream[:size], stream[size:]))
        return ((high << 32) | low).reshape(shape)
    return stream.astype(jnp.dtype(f"uint{bit_width}")).reshape(shape)


CHACHA20 = define_prng_impl(
    key_shape=(_KEY_WORDS,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="chacha20",
    tag="cc20",
)
"""ChaCha20 for ``jax.random.wrap_key_data(..., impl=CHACHA20)``: keys of eight uint32 words.

``jax.random.key(seed, impl=CHACHA20)`` holds no more entropy than its seed: for tests only.
"""


def os_key(num_chains: int | None = None) -> Key[Array, "..."]:
    """Fresh ChaCha20 key(s) from the operating system's generator.

    :param num_chains: how many independent keys; ``None`` for one key without a leading axis.
    :returns: A typed key of shape ``()`` or ``(num_chains,)``, 256 bits of entropy each.
    :raises RuntimeError: when called inside ``jit``, ``vmap``, ``pmap``, ``scan`` or ``grad``.
        There the bytes would be drawn once and become a constant of the compiled program.

    **Example**::

        >>> os_key(3).shape
        (3,)
    """
    if jax.extend.core.get_opaque_trace_state() != _HOST:
        raise RuntimeError(
            "os_key() was called inside a JAX transformation, where its bytes would become a "
            "constant shared by every call and chain: draw the key on the host and pass it in"
        )
    shape = () if num_chains is None else (num_chains,)
    words = np.frombuffer(secrets.token_bytes(4 * _KEY_WORDS * math.prod(shape)), np.uint32)
    # Not by `asarray`, which compiles a program.
    words = jax.device_put(words.reshape(*shape, _KEY_WORDS))
    return random.wrap_key_data(words, impl=CHACHA20)


def word_pairs(key: Key[Array, ""], n: int) -> tuple[UInt32[Array, " {n}"], UInt32[Array, " {n}"]]:
    """``n`` pairs of independent uniform 32-bit words, the raw material of every table draw.

    :param key: one typed key of any implementation; used up by this call.
    :param n: how many pairs.
    :returns: Two uint32 arrays of length ``n``.

    **Example**::

        >>> first, second = word_pairs(jax.random.key(0), 5)
        >>> first.shape, second.dtype
        ((5,), dtype('uint32'))
    """
    if random.key_impl(key) == "threefry2x32":
        # A child of a threefry key is one whole 64-bit output; `bits` would throw half of it away.
        pairs = random.key_data(random.split(key, n))
        return pairs[:, 0], pairs[:, 1]
    half_block = _BLOCK_WORDS // 2
    # Whole blocks: the two halves of every ChaCha20 block are then contiguous rows.
    words = random.bits(key, (2, half_block * -(-n // half_block)), jnp.uint32)
    return words[0, :n], words[1, :n]


def scrubbed(key: Array) -> Array:
    """Zeros in the shape and type of ``key`` (typed or raw), to put where a used key was."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return random.wrap_key_data(scrubbed(random.key_data(key)), impl=random.key_impl(key))
    # From the host: no program is compiled for zeros.
    return jax.device_put(np.zeros(key.shape, key.dtype))

"""Several processes of ``jax.distributed`` that make one run together.

Every process runs the same program on records that are divided among all of them. One charges, and
has the key of the noise; the others get both from it. Nobody touches a record before all have said
that they are about to do the same.
"""

from __future__ import annotations

import dataclasses
import dis
import hashlib
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import random
from jax.experimental import multihost_utils

from numpyro_dp._arrays import unplaced, x64
from numpyro_dp._shards import is_of_all, several_processes
from numpyro_dp.errors import BudgetExceededError, LedgerError
from numpyro_dp.mechanisms.random import CHACHA20
from numpyro_dp.model.frozen import Frozen

T = TypeVar("T")

_DIGEST, _TEXT = 32, 4_096
_FAILED, _READY, _UNABLE = 0, 1, 2
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype, type)
# What an error of the first process is for the others too.
_ERRORS = {each.__name__: each for each in (BudgetExceededError, LedgerError, ValueError)}


def is_first() -> bool:
    """Whether this process charges, keeps the ledger, and shows progress; true of a single one."""
    return not several_processes() or jax.process_index() == 0


@dataclass
class Meeting:
    """Where the processes of one run meet before it touches a record; nothing in a single one.

    :param over: whether they did.
    """

    over: bool = False

    def agree(self, *of: Any, able: Callable[[], bool] = lambda: True) -> None:
        """Wait for all processes, and refuse to go on unless they are about to do the same.

        :param of: everything that a run is made of, private values left out.
        :param able: whether this process's ledger would take the charge.
        :raises BudgetExceededError: that of another process than the first would not.
        :raises RuntimeError: some process has another program, or none of this run any more.
        """
        if several_processes() and not self.over:
            self._met(bytes([_READY if able() else _UNABLE]) + fingerprint(*of))

    def fail(self) -> None:
        """Let the other processes know that this one will not come."""
        if several_processes() and not self.over:
            # This one has an error of its own.
            self._gathered(bytes([_FAILED]) + bytes(_DIGEST))

    def _gathered(self, said: bytes) -> np.ndarray:
        self.over = True
        return multihost_utils.process_allgather(np.frombuffer(said, np.uint8))

    def _met(self, said: bytes) -> None:
        all_said = self._gathered(said)
        failed = [int(each) for each in np.flatnonzero(all_said[:, 0] == _FAILED)]
        if failed:
            raise RuntimeError(
                f"this run was given up before its charge, by process {failed}, which says why. "
                "Nothing was charged"
            )
        if len({each[1:].tobytes() for each in all_said}) > 1:
            raise RuntimeError(
                "the processes of this run differ in what they are about to do: give all of them "
                "the same model, settings, public arguments, shapes, key, ledger's budget and "
                "versions of Python's packages. Nothing was charged"
            )
        unable = [int(each) for each in np.flatnonzero(all_said[:, 0] == _UNABLE)]
        # Where the first refuses, it says so itself. Where others did after its charge, it would
        # go on alone.
        if unable and 0 not in unable:
            raise BudgetExceededError(
                f"the ledger of process {unable} has no room for what that of process 0 may take: "
                "give the other processes an Accountant of the same budget to which nothing else "
                "is charged. Nothing was charged"
            )


def key_of_first(make: Callable[[], Any]) -> Any:
    """The key that the first process makes, on all of them; an error of it is everybody's.

    :param make: what gives the key; called by the first process alone.
    :raises RuntimeError: the first process failed; budgets and ledgers that refuse keep their type.
    """
    if not several_processes():
        return make()
    failed: Exception | None = None
    told, key_bytes = b"", len(np.asarray(random.key_data(random.key(0, impl=CHACHA20)))) * 4
    if is_first():
        try:
            told = bytes([_READY]) + np.asarray(random.key_data(make())).tobytes()
        except Exception as error:
            failed = error
            told = bytes([_FAILED]) + f"{type(error).__name__}: {error}".encode()
    room = np.frombuffer(told[:_TEXT].ljust(_TEXT, b"\0"), np.uint8)
    told = np.asarray(multihost_utils.broadcast_one_to_all(room)).tobytes()
    if failed is not None:
        raise failed
    if told[0] == _FAILED:
        kind, _, text = told[1:].rstrip(b"\0").decode(errors="replace").partition(": ")
        if kind in _ERRORS:
            raise _ERRORS[kind](text)
        raise RuntimeError(f"the first process could not charge this run ({kind}): {text}")
    words = np.frombuffer(told[1 : 1 + key_bytes], np.uint32)
    return random.wrap_key_data(jnp.asarray(words), impl=CHACHA20)


def require_same(released: Any) -> None:
    """Refuse to go on where what was released is not the same on all processes, to the last bit.

    :param released: a pytree of released values; keys and what else is no number are left out.
    :raises RuntimeError: it is not.
    """
    if not several_processes():
        return
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(released):
        if not jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.extended):
            digest.update(np.asarray(leaf).tobytes())
    said = np.frombuffer(digest.digest(), np.uint8)
    if len({each.tobytes() for each in multihost_utils.process_allgather(said)}) > 1:
        raise RuntimeError(
            "what was released is not the same on all processes: their processors round "
            "differently, or the model asks which process it is in. Run it on machines of one kind"
        )


def on_each(values: T) -> T:
    """Values that all processes hold, as arrays of each process alone.

    What computes with them afterwards needs no other process.
    """
    return unplaced(values) if several_processes() else values


def fingerprint(*parts: Any) -> bytes:
    """A digest of plain values, settings and code, which is the same in every process.

    Of an object whose values are not known to be public its type alone counts.
    """
    versions = [each.__version__ for each in (jax, np, numpyro)]
    known = platform.python_version(), *versions, x64(), len(jax.devices())
    digest = hashlib.sha256()
    for text in _told((known, parts), set()):
        digest.update(text.encode() + b"\0")
    return digest.digest()


def _told(value: Any, above: set[int]) -> Iterator[str]:
    """The texts that tell a value; ``above`` are objects that it is part of."""
    yield f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, _PLAIN):
        yield repr(value)
    elif isinstance(value, (np.ndarray, jax.Array)):
        yield from _told_array(value)
    elif id(value) not in above:
        for part in _parts(value):
            yield from _told(part, above | {id(value)})


def _told_array(value: Any) -> Iterator[str]:
    yield f"{value.shape} {value.dtype}"
    if is_of_all(value) and not value.is_fully_replicated:
        return  # Rows of several processes, of which none has all.
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = random.key_data(value)
    if value.dtype != object:
        yield hashlib.sha256(np.asarray(value).tobytes()).hexdigest()


def _parts(value: Any) -> Iterator[Any]:
    """What a value is made of; nothing of an object of unknown kind."""
    if isinstance(value, Frozen):
        yield value._identity
    elif isinstance(value, Mapping):
        yield from sorted(value.items(), key=repr)
    elif isinstance(value, (set, frozenset)):
        yield from sorted(value, key=repr)
    elif isinstance(value, (list, tuple)):
        yield from value
    elif dataclasses.is_dataclass(value):
        yield from (getattr(value, each.name) for each in dataclasses.fields(value))
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, CodeType):
        yield from (value.co_code, value.co_names, value.co_consts)
    elif isinstance(value, FunctionType):
        # Not where it was written: machines keep one script in several places.
        cells = [each.cell_contents for each in value.__closure__ or () if _is_filled(each)]
        yield from (value.__qualname__, value.__code__, value.__defaults__, cells)
        yield {name: value.__globals__.get(name) for name in _plain_globals(value)}
    elif isinstance(value, MethodType):
        yield value.__func__
    elif callable(getattr(value, "__wrapped__", None)):
        yield value.__wrapped__


def _plain_globals(function: FunctionType) -> set[str]:
    """Names of the numbers, texts and arrays of its module that a function reads."""
    names: set[str] = set()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        read = (each for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")
        names.update(each.argval for each in read)
    plain = (*_PLAIN, np.ndarray, jax.Array)
    return {name for name in names if isinstance(function.__globals__.get(name), plain)}


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - a cell that was never filled has none
    except ValueError:
        return False
    return True

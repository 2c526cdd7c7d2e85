"""What is thrown at every public entry, and what must come of it.

A case is an entry, one or two of its arguments replaced by odd values, and records of an odd kind;
all of it follows from the case's number. Either it ends in a documented error and the ledger holds
no charge, or in a finite result whose report can be recomputed and is within its budget.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import numpyro_dp as ndp
from tests.fuzz.entries import BUDGET, CHECKS, ENTRIES, OTHERS, Entry

N = 40
# What public docstrings name. A ValueError covers what the model layer refuses.
DOCUMENTED = (ValueError, ndp.BudgetExceededError, ndp.LedgerError)
# Cases from these numbers on, so that those before them stay what they were.
FIRST_CHECK, FIRST_OTHER = 100_000, 200_000

# Odd values of an argument. Those of one kind are tried equally often.
VALUES: dict[str, list[Any]] = {
    "numbers": [0, -1, 1, 2, 0.5, 3.7, 1e-300, 1e300, -0.0, 10**30],
    "no numbers": [math.nan, math.inf, -math.inf, 1j],
    "of another type": [np.float16(0.5), np.int8(3), np.float64(2.0), np.array(1.5), True, False],
    "arrays": [np.ones(2), jnp.ones(()), jnp.zeros((0,)), [1.0], (1, 2)],
    "no values": [None, "", "people", "plain", b"x", {}, [], (), object(), len, int],
    "budgets": [ndp.Budget(0.1, 1e-6), ndp.Budget(50.0, 1e-3), BUDGET],
}


def _records(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(N, 2)).astype(np.float32), rng.integers(0, 2, N).astype(np.int32)


def _row(value: float) -> Callable[[Any, Any], tuple]:
    def changed(x, y):
        x = x.copy()
        x[3] = value
        return x, y

    return changed


# Records of an odd kind; shapes are shared wherever they can be, so that little is compiled.
DATA: dict[str, Callable[[Any, Any], tuple]] = {
    "NaN in one": _row(np.nan),
    "infinite": _row(np.inf),
    "huge": _row(3e38),
    "all NaN": lambda x, y: (np.full_like(x, np.nan), y),
    "zeros": lambda x, y: (np.zeros_like(x), y),
    "float16": lambda x, y: (x.astype(np.float16), y),
    "float64": lambda x, y: (x.astype(np.float64), y),
    "bool": lambda x, y: (x, y.astype(bool)),
    "int8": lambda x, y: (x, y.astype(np.int8)),
    "float outcome": lambda x, y: (x, y.astype(np.float32)),
    "outcome outside": lambda x, y: (x, y + 5),
    "negative outcome": lambda x, y: (x, -y),
    "integers": lambda x, y: (np.rint(x).astype(np.int32), y),
    "JAX": lambda x, y: (jnp.asarray(x), jnp.asarray(y)),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "strings": lambda x, y: (x.astype(str), y),
    "objects": lambda x, y: (x.astype(object), y),
    "complex": lambda x, y: (x.astype(complex), y),
    "none": lambda x, y: (None, y),
    "no outcome": lambda x, y: (x,),
    "nothing": lambda x, y: (),
    "empty tree": lambda x, y: ({}, []),
    "no rows": lambda x, y: (x[:0], y[:0]),
    "one row": lambda x, y: (x[:1], y[:1]),
    "other lengths": lambda x, y: (x, y[:-1]),
    "one column": lambda x, y: (x[:, 0], y),
    "too many columns": lambda x, y: (np.concatenate([x, x], 1), y),
    "three dimensions": lambda x, y: (x[..., None], y),
    "a number": lambda x, y: (3.0, y),
}


class Case(NamedTuple):
    """One case, made from its number."""

    number: int
    entry: str
    options: dict[str, Any]
    data: str
    relation: str
    wide: bool


def entries_of(number: int) -> dict[str, Entry]:
    """The entries that are tried by cases of such numbers."""
    return ENTRIES if number < FIRST_CHECK else CHECKS if number < FIRST_OTHER else OTHERS


def case(number: int) -> Case:
    rng = np.random.default_rng([7, number])
    entries = entries_of(number)
    names = [name for name, each in entries.items() for _ in range(each.weight)]
    entry = names[rng.integers(len(names))]
    options = {}
    for _ in range(rng.choice([0, 1, 2], p=[0.2, 0.6, 0.2])):
        pool = list(VALUES.values())[rng.integers(len(VALUES))]
        options[rng.choice(entries[entry].options)] = pool[rng.integers(len(pool))]
    data = "plain" if rng.random() < 0.6 and options else list(DATA)[rng.integers(len(DATA))]
    relation = str(rng.choice(["zero_out", "replace_one", "add_remove"], p=[0.7, 0.15, 0.15]))
    return Case(number, str(entry), {str(k): v for k, v in options.items()}, data, relation,
                bool(rng.random() < 0.1))  # fmt: skip


def tried(which: Case) -> str:
    """Run a case; what is wrong with how it ended, or an empty text."""
    accountant = ndp.Accountant(ndp.Budget(60.0, 1e-2), relation=which.relation)
    plain = _records(np.random.default_rng(1))
    data = plain if which.data == "plain" else DATA[which.data](*plain)
    with warnings.catch_warnings(), jax.enable_x64(which.wide):
        warnings.simplefilter("ignore")
        try:
            run = entries_of(which.number)[which.entry].run
            found, report = run(dict(which.options), accountant, data)
        except DOCUMENTED as error:
            spent = "" if not accountant.entries else f"charged before {type(error).__name__}: "
            return f"{spent}{error}"[:200] if spent else ""
        except Exception as error:
            # A function of the user's own raises what it likes, while nothing is charged.
            own = any(callable(value) for value in which.options.values())
            if own and not accountant.entries:
                return ""
            spent = "charged, then " if accountant.entries else ""
            return f"{spent}{type(error).__name__}: {error}"[:200]
    return _wrong(found, report, accountant)


def _wrong(found: Any, report: Any, accountant: Any) -> str:
    if not all(np.all(np.isfinite(np.asarray(leaf))) for leaf in jax.tree.leaves(found)):
        return "the result is not finite"
    if report is None:
        return ""
    if not 0 <= report.epsilon < math.inf:
        # Privacy was switched off, as the documentation of tests says, and the report says so.
        return "" if "not differentially private" in str(report) else f"ε = {report.epsilon}"
    if not math.isclose(report.epsilon, report.recompute(), rel_tol=1e-9):
        return "the report is not what its events say"
    if accountant.entries and accountant.epsilon() > 60.0:
        return "the ledger is overspent"
    return ""

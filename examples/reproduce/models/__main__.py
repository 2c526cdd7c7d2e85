"""Models by name, and those that are taken and lie off, each beside NUTS on the same records.

    python examples/reproduce/models [--only NAME ...] [--releases 3] [--table]

Each release is of records of its own, made up, at ε = 1 and δ = 1e-5, and prints a JSON line: the
page's row and the case, how many times as wide as NUTS's the narrowest and the widest interval is,
the farthest mean in standard deviations of the private posterior and whose it is, and the notes.
A model that is refused prints what the refusal says. ``--table`` reads such lines from
``docs/_static/models.jsonl`` and prints what the pages say of them.
"""

import argparse
import json
import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
from case import CASES, Case
from numpyro.infer import MCMC, NUTS, init_to_median

import numpyro_dp as ndp

LOG = Path(__file__).parents[3] / "docs" / "_static" / "models.jsonl"
BUDGET = ndp.Budget(1.0, 1e-5)
for part in ("a_to_g", "h_to_l", "m_to_q", "r_to_z", "wrong"):
    import_module(part)


def released(case: Case, model: Any, key: jax.Array, *, small: bool) -> ndp.MCMC:
    kernel = ndp.DPNUTS(model, privacy=BUDGET, **case.options)
    draws = 50 if small else 1_000
    mcmc = ndp.MCMC(kernel, num_warmup=draws // 2, num_samples=draws, progress_bar=False)
    mcmc.run(key, *case.records)
    return mcmc


def sampled(case: Case, key: jax.Array, *, small: bool) -> dict[str, Any]:
    kernel = NUTS(case.model, init_strategy=init_to_median, dense_mass=True)
    draws = 50 if small else 1_500
    mcmc = MCMC(kernel, num_warmup=draws // 2, num_samples=draws, progress_bar=False)
    mcmc.run(key, *case.records)
    return mcmc.get_samples()


def middle(draws: np.ndarray) -> np.ndarray:
    """How wide the middle nine tenths are: a half-Cauchy scale may have no variance."""
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    return high - low


def beside(private: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    """Widths and distances over all coordinates; what does not vary is none."""
    widths, distances = {}, {}
    for name in private:
        mine, theirs = (np.asarray(draws[name], float) for draws in (private, reference))
        mine, theirs = (draws.reshape(len(draws), -1) for draws in (mine, theirs))
        ratio = middle(mine) / np.maximum(middle(theirs), 1e-12)
        away = abs(mine.mean(0) - theirs.mean(0)) / np.maximum(mine.std(0), 1e-12)
        for k in np.flatnonzero(theirs.std(0) > 1e-9):
            whose = f"{name}[{k}]" if mine.shape[1] > 1 else name
            widths[whose], distances[whose] = ratio[k], away[k]
    narrowest, widest = min(widths, key=widths.get), max(widths, key=widths.get)
    farthest = max(distances, key=distances.get)
    return {
        "narrowest": [narrowest, round(widths[narrowest], 2)],
        "widest": [widest, round(widths[widest], 2)],
        "farthest": [farthest, round(distances[farthest], 1)],
    }


def lines(row: str, name: str, releases: int, *, small: bool) -> Iterator[dict[str, Any]]:
    for number in range(releases):
        case = CASES[row][name](np.random.default_rng(number))
        said = {"row": row, "case": name, "release": number}
        keys = jax.random.split(jax.random.key(number))
        if case.refused is not None and not number:
            try:
                released(case, case.refused, keys[0], small=small)
            except ndp.UnsupportedModelError as error:
                yield {**said, "refused": str(error)[:200]}
            else:
                yield {**said, "refused": None}
        mcmc = released(case, case.model, keys[0], small=small)
        found = beside(mcmc.get_samples(), sampled(case, keys[1], small=small))
        notes = [note[:90] for note in mcmc.privacy.notes]
        yield {**said, "records": mcmc.privacy.num_records, **found, "notes": notes}


def told(log: Path = LOG) -> dict[str, dict[str, Any]]:
    """What the log says of each row, over all releases of all of its cases.

    **width** is the narrowest and the widest, to tenths outwards; **farthest** of the means;
    **releases**, and how many of them a note **spoke** against.
    """
    rows: dict[str, list[dict]] = {}
    for line in map(json.loads, log.read_text().splitlines()):
        if "widest" in line:
            rows.setdefault(line["row"], []).append(line)
    return {
        row: {
            "width": (
                math.floor(10 * min(line["narrowest"][1] for line in found)) / 10,
                math.ceil(10 * max(line["widest"][1] for line in found)) / 10,
            ),
            "farthest": max(line["farthest"][1] for line in found),
            "releases": len(found),
            "spoke": sum(any(map(speaks, line["notes"])) for line in found),
        }
        for row, found in rows.items()
    }


def speaks(note: str) -> bool:
    return note.startswith(("do not use", "with care"))


def words(width: tuple[float, float]) -> str:
    """A range as the pages write it: .9 to 1.3."""
    return " to ".join(f"{end:.1f}".removeprefix("0") for end in width)


def table() -> str:
    out = ["| row | width | farthest | releases | noted |", "|---|---|---|---|---|"]
    for row, said in told().items():
        found = words(said["width"]), said["farthest"], said["releases"], said["spoke"]
        out.append(f"| {row} | {' | '.join(map(str, found))} |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="rows or cases; all of them by default")
    parser.add_argument("--releases", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="few draws, for a test")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(table())
        return
    for row, cases in CASES.items():
        for name in cases:
            if not options.only or row in options.only or name in options.only:
                for line in lines(row, name, options.releases, small=options.small):
                    print(json.dumps(line, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()

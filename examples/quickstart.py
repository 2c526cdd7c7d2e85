"""A private posterior from an ordinary NumPyro model, in five minutes.

The records are real and sensitive: 6,366 women answered a survey of the magazine *Redbook* in
1974, among other things on extramarital affairs (R. Fair, *A Theory of Extramarital Affairs*,
Journal of Political Economy 86, 1978; shipped with statsmodels). One woman is one record, and the
posteriors below protect each of them, one at ε = 1 and one at ε = 0.5.

Run ``python examples/quickstart.py``; it prints the posterior at ε = 1 with its privacy statement,
and saves ``quickstart.png``, where both stand beside NUTS.
"""

import argparse

import jax
import matplotlib as mpl
import numpy as np
import numpyro
import numpyro.distributions as dist
import statsmodels.datasets.fair as survey

import numpyro_dp as ndp

# The range of every answer is printed in the survey's codebook. Scaling by it, and not by the
# smallest and largest answer given, keeps the inputs free of any statistic of the records.
CODEBOOK = {
    "rates marriage": ("rate_marriage", 1, 5),
    "age at marriage": ("age_at_marriage", 9.5, 42),
    "years married": ("yrs_married", 0.5, 23),
    "children": ("children", 0, 5.5),
    "religious": ("religious", 1, 4),
    "education": ("educ", 9, 20),
}
LABELS = {"w": ["intercept", *CODEBOOK]}


def load() -> tuple[np.ndarray, np.ndarray]:
    """Inputs (6366, 7), an intercept and six answers scaled to [-1, 1], and outcomes (6366,)."""
    table = survey.load_pandas().data
    table["age_at_marriage"] = table.age - table.yrs_married
    columns = [np.ones(len(table))]
    for name, low, high in CODEBOOK.values():
        answers = table[name].to_numpy().clip(low, high)
        columns.append(2 * (answers - low) / (high - low) - 1)
    x = np.stack(columns, axis=1).astype(np.float32)
    return x, (table.affairs > 0).to_numpy().astype(np.int32)


def model(x, affair=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("women", x.shape[0]):  # one slice of this plate = one woman
        numpyro.sample("affair", dist.Bernoulli(logits=x @ w), obs=affair)


def private_run(privacy: ndp.Budget, accountant: ndp.Accountant, x, affair) -> ndp.MCMC:
    """A posterior at a price: what it will buy is known, and printed, before it is paid."""
    kernel = ndp.DPNUTS(model, privacy=privacy, accountant=accountant)
    print(kernel.forecast(x, affair))
    mcmc = ndp.MCMC(kernel, num_warmup=500, num_samples=1_000, num_chains=4)
    mcmc.run(jax.random.key(0), x, affair)
    return mcmc


def teaching_picture(private: dict[str, ndp.MCMC], x, affair, path: str) -> None:
    """Forest plot of private posteriors beside NUTS, which is NOT private."""
    nuts = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model), num_warmup=300, num_samples=500, progress_bar=False
    )
    nuts.run(jax.random.key(1), x, affair)
    ax = ndp.plot_forest({**private, "NUTS, not private": nuts}, labels=LABELS)
    ax.axvline(0, color="0.7", zorder=0)
    ax.set_title(
        "Log-odds of an affair\n"
        "NUTS is shown for teaching: publishing its draws would void the guarantee",
        fontsize=11,
    )
    ax.figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ledger", help="file that keeps the budget between processes")
    parser.add_argument("--figure", default="quickstart.png")
    options = parser.parse_args()
    mpl.use("Agg")

    x, affair = load()
    # One ledger for everything that is ever released from these records. Costs compose: the two
    # runs together take less than 0.5 + 1.
    accountant = ndp.Accountant(ndp.Budget(epsilon=1.2, delta=1e-5), path=options.ledger)
    mcmc = private_run(ndp.Budget(1.0, 1e-5), accountant, x, affair)
    mcmc.print_summary(labels=LABELS)
    print(f"\n{mcmc.privacy}\n")

    half = private_run(ndp.Budget(0.5, 1e-5), accountant, x, affair)
    print(f"\n{accountant.report()}")

    private = {"private, ε = 0.5": half, "private, ε = 1": mcmc}
    teaching_picture(private, x, affair, options.figure)
    print(f"\nSaved {options.figure}")


if __name__ == "__main__":
    main()

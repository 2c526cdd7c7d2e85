"""A broken look at ledgers."""

from numpyro_dp.cli.snapshot import Snapshot
from tests.mutations.registry import mutation


@mutation(
    "A budget that was overspent is found in order.",
    "test_cli.py::test_verify_finds_an_overspent_budget",
    r"code == 1",
)
def overspent_in_order(patch):
    honest = Snapshot.charged

    def kept(self):
        limit = honest(self) if self.budget is None else self.budget.epsilon
        return min(honest(self), limit)

    patch.setattr(Snapshot, "charged", kept)

"""Results that were pickled before the files of the package moved still load, and say the same."""

import pickle
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "pickles"
STORED = sorted(FOLDER.glob("*.pkl"))


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_object_loads(path):
    found = pickle.loads(path.read_bytes())
    assert type(found).__module__.startswith(("numpyro_dp", "builtins"))
    report = getattr(found, "privacy", None)
    if path.stem not in ("kernel", "plan", "events", "budget"):
        assert report is not None
        assert 0 < report.epsilon < 5
        # Another processor rounds the last digit otherwise.
        assert report.epsilon == pytest.approx(report.recompute(), rel=1e-12)
        assert report.unit in str(report)
        assert report.steps > 0
    # And goes on as what it is now.
    again = pickle.loads(pickle.dumps(found))
    assert type(again) is type(found)


def test_a_stored_run_says_what_it_said():
    mcmc = pickle.loads((FOLDER / "mcmc_ops.pkl").read_bytes())
    report = mcmc.privacy
    assert report.unit == "one slice of plate 'people'"
    assert report.num_records == 200
    assert report.assumed_public[:2] == (
        "the number of records (200)",
        "the model, its priors and every option of the kernel",
    )
    assert (report.steps, len(report.events)) == (1, 1)
    assert any("secret, random and used once" in each for each in report.conditions)

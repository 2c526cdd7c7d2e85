"""The conversion against the real ArviZ 1.x, which needs Python 3.12 or newer.

Finds such an interpreter, installs this project and ``arviz>=1`` in a virtual environment in a
temporary folder, runs the tests of the conversion there, and draws plots that ArviZ 0.23 lacks.
Where there is no such interpreter it says so and ends well:

    python tests/diagnostics/arviz1_corner.py
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLDEST = (3, 12)
NAMES = ("python3.12", "python3.13", "python3.14")

LOOK = """
import tempfile, warnings
from pathlib import Path
import matplotlib
matplotlib.use("agg")
import arviz as az, jax, numpy as np, xarray
from numpyro.infer import Predictive
import numpyro_dp as ndp
from tests.models import logistic

rng = np.random.default_rng(0)
x = rng.normal(size=(300, 3)).astype(np.float32)
y = (rng.random(300) < 0.5).astype(np.int32)
kernel = ndp.DPSGLD(logistic, step_size=1e-3, batch_size=60, clip_norm=1.0, noise_multiplier=2.0)
mcmc = ndp.MCMC(kernel, num_warmup=20, num_samples=100, num_chains=2, progress_bar=False)
mcmc.run(jax.random.key(0), x, y, extra_fields=("i",))
prior = Predictive(logistic, num_samples=100)(jax.random.key(1), np.ones((2, 3), np.float32))
tree = ndp.from_numpyro(mcmc, prior=prior)
assert isinstance(tree, xarray.DataTree)
assert set(az.summary(tree, var_names=["w"]).index) == {"w[0]", "w[1]", "w[2]"}
folder = Path(tempfile.mkdtemp())
for plot in (az.plot_forest, az.plot_trace_dist, az.plot_rank, az.plot_ess, az.plot_autocorr,
             az.plot_pair, az.plot_prior_posterior):
    file = folder / f"{plot.__name__}.png"
    plot(tree, var_names=["w"], backend="matplotlib").savefig(file)
    assert file.stat().st_size > 5_000, plot.__name__
tree.to_netcdf(folder / "draws.nc")
with xarray.open_datatree(folder / "draws.nc") as read:
    assert read["posterior"].attrs["dp_epsilon"] == mcmc.privacy.epsilon
    np.testing.assert_array_equal(read["posterior"]["w"], tree["posterior"]["w"])
print(f"ArviZ {az.__version__}: tree, summary, netCDF and plots are as they should be")
"""


def interpreter() -> str | None:
    """Path of a Python of at least ``OLDEST`` that starts, or ``None``."""
    # A name on the path may be a shim that finds nothing, so pyenv's own folders come too.
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [sys.executable, *map(shutil.which, NAMES), *sorted(pyenv.glob("*/bin/python"))]
    for candidate in filter(None, found):
        asked = f"import sys, venv; raise SystemExit(sys.version_info < {OLDEST})"
        with tempfile.TemporaryFile() as silence:
            command = [str(candidate), "-c", asked]
            if subprocess.run(command, stdout=silence, stderr=silence).returncode == 0:
                return str(candidate)
    return None


def check(python: str, folder: Path) -> None:
    """Install and check in ``folder``; raises CalledProcessError at the first failure."""

    def run(*command: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
        subprocess.run(command, check=True, cwd=ROOT, env=environment)

    run(python, "-m", "venv", str(folder))
    own = str(folder / "bin" / "python")
    # netcdf4, because ArviZ 1 brings no library that writes netCDF.
    wanted = (f"{ROOT}[examples]", "arviz>=1", "netcdf4", "pytest")
    run(own, "-m", "pip", "install", "-q", *wanted)
    run(own, "-c", LOOK)
    run(own, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/diagnostics")


def main() -> None:
    python = interpreter()
    if python is None:
        oldest = ".".join(map(str, OLDEST))
        print(f"notice: no Python {oldest} or newer here, so ArviZ 1 was not checked")
        return
    print(f"with {python}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        check(python, Path(folder))


if __name__ == "__main__":
    main()

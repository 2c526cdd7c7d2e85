"""Records that are divided among devices: the same law and bits, and only sums that travel."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import numpyro_dp as ndp
from numpyro_dp.model.records import as_records, read_arguments
from tests.scale.sharded import WHOLE

ROOT = Path(__file__).resolve().parents[2]


def on_devices(number, *arguments, flags=""):
    """What a program prints in a process with so many host devices."""
    forced = f"--xla_force_host_platform_device_count={number} {flags}"
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {forced}",
        },
        capture_output=True,
        text=True,
        timeout=1_500,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.strip().splitlines()


def test_sums_are_those_of_one_device_and_nothing_else_travels():
    assert on_devices(4, "-W", "error", "-m", "tests.scale.sums") == ["equal"]


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "how"), [(2, "even"), (4, "uneven")])
def test_every_algorithm_on_several_devices(devices, how, tmp_path):
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    rows = [
        json.loads(each)
        for each in on_devices(devices, "-m", "tests.scale.sharded", str(devices), how, flags=flags)
    ]
    assert len(rows) > 20
    for row in rows:
        if how == "uneven" and row["case"] in WHOLE:
            assert "multiple" in row["refused"]
            continue
        assert row["charged"][0] == row["charged"][1] >= 1, row
        assert row["numbers"] > 0, row
        assert row["finite"], row
        # A record's floats may be rounded the other way in a block of another shape: one unit of
        # the lattice in few coordinates.
        assert row["apart"] < 0.02, row
        assert row["differing"] < 0.2 or row["case"].startswith("private_"), row
    travels = set()
    for file in tmp_path.glob("*after_optimizations.txt"):
        text = file.read_text()
        found = re.findall(r"= (\(.*?\)|\S+) (all-\w+|reduce-scatter|collective-\w+)\(", text)
        travels |= {(kind, what) for what, kind in found}
    numbers = {each for _, what in travels for each in re.findall(r"([a-z]+\d+)\[", what)}
    assert {kind for kind, _ in travels} == {"all-reduce"}
    # OPS adds floats, of which nothing is released but a draw.
    assert numbers <= ({"s32", "f64"} if how == "even" else {"s32"})


# --- on one device -------------------------------------------------------------------------------


def test_one_device_divides_nothing():
    x, y = np.ones((7, 3), np.float32), np.arange(7)
    one, other = ndp.shard(x, y)
    assert isinstance(one, jax.Array)
    np.testing.assert_array_equal(one, x)
    np.testing.assert_array_equal(other, y)
    assert ndp.shard(x).shape == (7, 3)


@pytest.mark.parametrize(
    "arrays", [(), (np.ones(3), np.ones(4)), (np.array(1.0),), (np.ones((0, 2)),)]
)
def test_what_is_no_table_of_records_is_refused(arrays):
    with pytest.raises(ValueError, match="one row for each record"):
        ndp.shard(*arrays)


@pytest.mark.parametrize(
    "array",
    [
        [1.0, 2.0],
        np.float32(1),
        np.array(["a", "b"]),
        np.array([object()]),
        np.zeros(2, [("x", "f4")]),
        np.ma.masked_array(np.ones(3), [True, False, False]),
        jax.random.split(jax.random.key(0), 3),
        ndp.public(np.ones(3)),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(array):
    with pytest.raises(ValueError, match="shard takes NumPy or JAX arrays of numbers"):
        ndp.shard(array)


@pytest.mark.parametrize("devices", [[], [0], jax.devices()[0], jax.devices()[:1] * 2])
def test_what_are_no_devices_is_refused(devices):
    with pytest.raises(ValueError, match="list of different JAX devices"):
        ndp.shard(np.ones(3), devices=devices)


@pytest.mark.filterwarnings("error")
def test_nothing_is_said_of_a_number_that_does_not_fit():
    assert np.isinf(np.asarray(ndp.shard(np.array([1e300, 0.0]))[0])) or jax.config.x64_enabled


def test_records_are_as_they_were_when_they_were_divided(tmp_path):
    """Also those of a mapped file, whose memory JAX would take as it is."""
    mapped = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (64,))
    divided = ndp.shard(mapped)
    mapped[:] = 5
    assert not np.asarray(divided).any()


def test_the_order_of_bytes_is_no_matter():
    x = np.arange(5)
    np.testing.assert_array_equal(ndp.shard(x.astype(">i4")), x)
    layout, arrays = read_arguments(None, (x.astype(">f4"),), {})
    assert layout.arrays[0].dtype == np.dtype(np.float32)
    np.testing.assert_array_equal(as_records(layout, arrays)[0], x)


REFUSALS = """
import jax, numpy as np, numpyro, numpyro.distributions as dist, pytest
import numpyro.infer.autoguide
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
import numpyro_dp as ndp
from numpyro_dp.model.private_model import PrivateModel

def model(x):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1), obs=x[:, 0])

def two(x, y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1), obs=x[:, 0] + y)

x = np.zeros((8, 4), np.float32)
devices = np.array(jax.devices())
rows, grid = Mesh(devices, ("a",)), Mesh(devices.reshape(2, 2), ("a", "b"))
backwards = Mesh(devices[::-1], ("a",))

def run(model, *arrays, accountant=None, chain_method="vectorized", **options):
    ledger = accountant or ndp.Accountant()
    kernel = ndp.DPSGLD(model, step_size=1e-3, clip_norm=1.0, noise_multiplier=5.0,
                        accountant=ledger, **options)
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=2, num_chains=2, progress_bar=False,
                    chain_method=chain_method)
    try:
        mcmc.run(jax.random.key(0), *arrays)
    finally:
        assert len(ledger.entries) == (0 if refused else 1)

put = lambda x, mesh, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))
refused = True
with pytest.raises(ValueError, match="another axis"):
    run(model, put(x, rows, None, "a"))
with pytest.raises(ValueError, match="same rows"):
    run(model, put(x, grid, "a"))
with pytest.raises(ValueError, match="several ways"):
    run(two, put(x, rows, "a"), put(x[:, 0], backwards, "a"))
with pytest.raises(ValueError, match="chain_method='vectorized'"):
    run(model, put(x, rows, "a"), chain_method="parallel")
with pytest.raises(ValueError, match="use numpyro_dp.MCMC"):
    ledger = ndp.Accountant()
    kernel = ndp.DPSGLD(model, step_size=1e-3, clip_norm=1.0, noise_multiplier=5.0,
                        accountant=ledger, num_steps=2)
    numpyro.infer.MCMC(kernel, num_warmup=0, num_samples=2, progress_bar=False).run(
        jax.random.key(0), put(x, rows, "a"))
assert not ledger.entries
with pytest.raises(ndp.UnsupportedModelError, match="devices among which"):
    PrivateModel(model, (x,)).records((put(x, rows, "a"),))
with pytest.raises(ndp.UnsupportedModelError, match="multiple of that"):
    PrivateModel(model, (ndp.shard(x[:7]),)).records((ndp.shard(x[:7]),))
np.testing.assert_array_equal(np.asarray(ndp.shard(x[:7])), x[:7])
with pytest.raises(ndp.UnsupportedModelError, match="number of records is private"):
    run(model, put(x, rows, "a"), accountant=ndp.Accountant(relation="add_remove"),
        sampling_rate=0.5, max_records=10)
refused = False
# Whatever axes make the division, and what lies on one device goes along.
run(model, put(x, grid, ("a", "b")))
run(two, put(x, rows, "a"), x[:, 0])
run(model, put(x, rows))
# All rows on every device, or on a mesh of one, whose types say where they lie.
explicit = (AxisType.Explicit,)
run(model, put(x, jax.make_mesh((4,), ("a",), axis_types=explicit)))
run(model, put(x, jax.make_mesh((1,), ("a",), axis_types=explicit), "a"))
refused = True
with jax.set_mesh(rows), pytest.raises(ValueError, match="outside of jax.set_mesh"):
    run(model, put(x, rows, "a"))
refused = False

def flat(x):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1), obs=x)

# The first sample of a chain would take rows that are no records for some.
first = ndp.OPS(flat, guarantee=ndp.BoundedLikelihood(-8.0, 0.0),
                sampler=ndp.Grid({"mu": np.linspace(-3, 3, 7)}))
refused = True
with pytest.raises(ndp.UnsupportedModelError, match="multiple of that"):
    run(flat, ndp.shard(x[:7, 0]), init_kernel=first)
refused = False
run(flat, ndp.shard(x[:, 0]), init_kernel=first)

# A run may go on where its records lie on other devices.
kernel = ndp.DPSGLD(flat, step_size=1e-3, clip_norm=1.0, noise_multiplier=5.0)
for chains in (1, 2):
    mcmc = ndp.MCMC(kernel, num_warmup=0, num_samples=2, num_chains=chains, progress_bar=False)
    mcmc.run(jax.random.key(0), ndp.shard(x[:, 0]))
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(1), ndp.shard(x[:, 0], devices=jax.devices()[1:]))
    ends = mcmc.last_state.z
    again = ndp.MCMC(kernel, num_warmup=0, num_samples=2, num_chains=chains, progress_bar=False)
    again.run(jax.random.key(2), ndp.shard(x[:, 0]), init_params=ends)
svi = ndp.DPSVI(flat, numpyro.infer.autoguide.AutoNormal(flat), numpyro.optim.SGD(1e-3),
                clip_norm=1.0, noise_multiplier=5.0)
found = svi.run(jax.random.key(0), 2, ndp.shard(x[:, 0]), progress_bar=False)
svi.run(jax.random.key(1), 2, ndp.shard(x[:, 0], devices=jax.devices()[1:]), progress_bar=False,
        init_state=found.state)
print("refused")
"""


def test_other_divisions_are_refused_before_the_charge():
    assert on_devices(4, "-W", "error", "-c", REFUSALS) == ["refused"]

"""What a bar says while programs are compiled, and what it makes of the time that this took."""

import functools
import time

import jax
import jax.numpy as jnp
import pytest
import tqdm.auto

from numpyro_dp.execution.progress import steps_bar

TABLE = ((5, 0.5), (10, 1.0))


class Bar(tqdm.auto.tqdm):
    made: list = []  # noqa: RUF012

    def __init__(self, *args, **kwargs):
        self.said = []
        super().__init__(*args, **kwargs)
        self.made.append(self)

    def set_description(self, desc=None, refresh=True):
        self.said.append(desc)
        super().set_description(desc, refresh)


@pytest.fixture
def bars(monkeypatch):
    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    monkeypatch.setattr(Bar, "made", [])
    return Bar.made


def program(number):
    """One that was never compiled, and whose compiling takes a second."""

    def slow(x):
        time.sleep(1.0)  # while it is traced
        return x * number

    return jax.jit(slow)


def steps(function, count=10):
    with steps_bar(count, TABLE, shown=True) as show:
        for done in range(1, count + 1):
            jax.block_until_ready(function(jnp.float32(done)))
            time.sleep(0.01)
            show(done, done, "sample")


def test_it_says_compiling_before_the_first_step_and_never_when_all_is_compiled(bars, capsys):
    function = program(3)
    steps(function)
    steps(function)
    first, second = bars
    assert first.said[0] == "compiling"
    assert set(first.said[1:]) == {"sample"}
    assert set(second.said) == {"sample"}
    assert "compiling" in capsys.readouterr().err.split("sample")[0]


def test_the_time_left_is_that_of_steps_and_not_of_compiling(bars):
    function = program(5)
    with steps_bar(100, TABLE, shown=True) as show:
        for done in range(1, 11):
            jax.block_until_ready(function(jnp.float32(done)))
            time.sleep(0.01)
            show(done)
        (bar,) = bars
        told = bar.format_dict
    counted = told["n"] - told["initial"]
    assert counted == 9
    # Nine steps of a hundredth of a second, and not the second that came before them.
    assert 0.09 <= told["elapsed"] < 0.8
    assert 11 < counted / told["elapsed"] <= 100


def test_a_step_that_is_far_more_than_what_it_compiled_is_counted(bars):
    """As a fit is, of which each compiles something small: `coverage` showed no time left."""
    with steps_bar(4, TABLE, shown=True) as show:
        for done in range(1, 5):
            jax.block_until_ready(jax.jit(lambda x, k=done: x * k)(jnp.float32(1.0)))
            time.sleep(0.5)
            show(done)
        (bar,) = bars
        told = bar.format_dict
    assert told["n"] - told["initial"] == 4
    assert told["elapsed"] < 4


def test_a_program_that_is_compiled_later_is_left_out_too(bars):
    early, late = program(7), program(11)
    with steps_bar(4, TABLE, shown=True) as show:
        for done, function in enumerate((early, early, late, late), start=1):
            jax.block_until_ready(function(jnp.float32(1.0)))
            show(done)
        (bar,) = bars
        told = bar.format_dict
    assert told["n"] - told["initial"] == 2
    assert told["elapsed"] < 0.8
    # Something was done by then: the bar does not go back to saying that it has not begun.
    assert bar.said.count("compiling") == 1


def test_without_a_bar_nothing_is_said(bars, capsys):
    with steps_bar(3, TABLE, shown=False) as show:
        program(13)(jnp.float32(1.0))
        show(1)
    assert bars == []
    assert capsys.readouterr().err == ""


def test_a_bar_that_tqdm_has_switched_off_ends_nothing(monkeypatch, capsys):
    monkeypatch.setattr("tqdm.auto.tqdm", functools.partial(tqdm.auto.tqdm, disable=True))
    steps(program(17), 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("broken", ["__init__", "set_description", "update", "refresh", "close"])
def test_a_bar_that_fails_ends_nothing(broken, bars, monkeypatch):
    failed = []

    def fails(*_, **__):
        failed.append(broken)
        raise OSError("the pipe is closed")

    function = program(19)
    monkeypatch.setattr(Bar, broken, fails)
    steps(function, 2)
    assert failed


def test_what_cannot_be_told_ends_nothing(bars):
    def fails():
        raise OSError("no such number")

    with steps_bar(2, TABLE, shown=True) as show:
        show(1, 1, "sample", fails)
        show(2, 2, "sample", lambda: "7 steps")
    assert bars[0].n == 2
    assert bars[0].postfix == "ε=0.5 of 1 charged, 7 steps"


def test_ctrl_c_within_a_bar_still_ends_the_run(bars, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Bar, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        steps(jnp.sin, 2)

"""Compile a program that runs a few times on a few rows: compiling it is all that costs.

XLA gains and loses options from release to release. One that it does not know is an error, and in
``XLA_FLAGS`` the end of the process, so it is asked for each of them first.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax

Options = dict[str, str | bool]

_WANTED: Options = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
    # In one piece: by default even a small program is cut up for 32 threads.
    "xla_cpu_parallel_codegen_split_count": "1",
    # Gone in the XLA of JAX 0.12.
    "xla_cpu_use_fusion_emitters": False,
}
_ASK = "import json, numpyro_dp._quick_compile as q"


@functools.cache
def known_options() -> Options:
    """Options that make this XLA compile quickly, asked for by compiling next to nothing."""
    return _known(_WANTED)


def _known(options: Options) -> Options:
    """Those of ``options`` that this XLA knows."""
    if _accepted(options):
        return options
    return {name: value for name, value in options.items() if _accepted({name: value})}


def _accepted(options: Options) -> bool:
    lowered = jax.jit(lambda: 0).lower()
    try:
        lowered.compile(compiler_options=options)
    except jax.errors.JaxRuntimeError:
        return False
    return True


def quickly_compiled(function: Callable[..., Any], *inputs: Any) -> Callable[..., Any]:
    """A function compiled for inputs of these shapes, quickly rather than well."""
    return jax.jit(function).lower(*inputs).compile(compiler_options=known_options())


@functools.cache
def light_options() -> Options:
    """Options under which a program compiles in a third of the time, and runs as fast as without.

    Those that are in ``XLA_FLAGS`` already stand.
    """
    wanted = _WANTED | {"xla_backend_optimization_level": "1"}
    del wanted["xla_llvm_disable_expensive_passes"]
    given = os.environ.get("XLA_FLAGS", "")
    known = known_options()
    return {name: value for name, value in wanted.items() if name in known and name not in given}


def lightly_jitted(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``jax.jit`` for a program that runs for seconds at most; see :func:`light_options`.

    :param options: those of ``jax.jit``.
    """
    return _jitted(function, light_options, options)


def quickly_jitted(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``jax.jit`` for a program that runs once; see :func:`known_options`.

    :param options: those of ``jax.jit``.
    """
    return _jitted(function, known_options, options)


def _jitted(
    function: Callable[..., Any], compiler: Callable[[], Options], options: dict[str, Any]
) -> Callable[..., Any]:
    @functools.cache
    def jitted() -> Callable[..., Any]:
        # At the first call: asking for options would start JAX at import.
        known = compiler() if jax.default_backend() == "cpu" else None
        return jax.jit(function, compiler_options=known, **options)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return jitted()(*args, **kwargs)

    return call


def known_flags(kind: str = "known_options") -> str:
    """The same options as a text for ``XLA_FLAGS``; those of ``light_options`` if told so.

    A process of its own is asked, since in this one XLA may read its flags only once.
    """
    asked = subprocess.run(
        [sys.executable, "-c", f"{_ASK}; print(json.dumps(q.{kind}()))"],
        env={**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"},
        check=True,
        capture_output=True,
        text=True,
    )
    return " ".join(f"--{k}={str(v).lower()}" for k, v in json.loads(asked.stdout).items())

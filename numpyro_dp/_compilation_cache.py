"""JAX's persistent compilation cache, with a folder of its own."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

_ENABLED = "jax_enable_compilation_cache"


def enable_compilation_cache(path: str | os.PathLike[str] | None = None) -> Path:
    """Keep compiled programs on disk, so that the next process need not compile them again.

    A first run of a model takes seconds of compiling in every new process. With this line before
    it, only the first process pays, until JAX, the model, shapes or settings change. It sets JAX's
    own persistent cache, for everything that the process compiles from then on.

    :param path: folder of the cache, made where it is missing. From then on its owner alone can
        read and write it, whoever could before (but on Windows). Default: ``numpyro_dp`` in the
        platform's folder for caches (``$XDG_CACHE_HOME`` or ``~/.cache``, ``~/Library/Caches``,
        ``%LOCALAPPDATA%``). Nothing in it is ever deleted; delete it when you like.
    :returns: the folder.
    :raises OSError: the folder cannot be made.
    :raises PermissionError: it belongs to another user.

    **Privacy.** The cache holds compiled programs, and programs of this package hold no record:
    records are arguments of a program and never constants in it, whichever method runs (checked by
    a search of the folder for a planted record). A program may hold what is public: shapes,
    settings, and arguments wrapped in ``numpyro_dp.public``. With ``relation="add_remove"`` the
    number of records is private and a shape tells it: nothing that such a run compiles is kept, or
    looked for, and a private kernel in plain ``numpyro.infer.MCMC`` refuses it while there is a
    cache. Your own code on these arrays outside a run, such as ``jnp.mean(x)``, is kept like any
    other. Plain ``numpyro.infer.MCMC`` without ``jit_model_args=True`` makes records constants, and
    a private kernel in it warns of that.

    **References.** JAX documentation, *Persistent compilation cache*.

    **Example**::

        >>> import tempfile, numpyro_dp as ndp
        >>> folder = ndp.enable_compilation_cache(tempfile.mkdtemp())
        >>> folder.is_dir()
        True
    """
    folder = _default() if path is None else Path(path).expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_own(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # A run is made of many small programs; by default JAX keeps none that took less than a second.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # Whether there is a cache JAX decides once, when it first compiles.
    compilation_cache.reset_cache()
    return folder


def _require_own(folder: Path) -> None:
    if not hasattr(os, "getuid"):
        return  # Windows
    # Who can write there can also give this process programs to run.
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(
            f"the folder '{folder}' belongs to another user, who could read what is compiled and "
            "put other programs in its place: give path= a folder of your own"
        )
    folder.chmod(0o700)


def is_on() -> bool:
    """Whether JAX keeps what it compiles."""
    return bool(jax.config.values["jax_compilation_cache_dir"] and jax.config.values[_ENABLED])


_LOCK = threading.Lock()
# What the setting was whenever it was switched off; the first is the user's.
_BEFORE: list[bool] = []


@contextmanager
def nothing_kept() -> Generator[None]:
    """Neither write to the persistent cache nor read from it, in any thread.

    The setting is the process's and not a thread's, because callbacks compile in other threads.
    """
    with _LOCK:
        _BEFORE.append(jax.config.values[_ENABLED])
        _switch(False)
    try:
        yield
    finally:
        with _LOCK:
            # Whichever run ends last takes the user's setting, in whatever order they end.
            _switch(_BEFORE.pop())


def _switch(on: bool) -> None:
    jax.config.update(_ENABLED, on)
    # A cache that is open already JAX uses whatever the setting; closed, it is not opened again.
    compilation_cache.reset_cache()


def _default() -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "numpyro_dp"

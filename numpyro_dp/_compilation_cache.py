"""JAX's persistent compilation cache, with a folder of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache


def enable_compilation_cache(path: str | os.PathLike[str] | None = None) -> Path:
    """Keep compiled programs on disk, so that the next process need not compile them again.

    A first run of a model takes seconds of compiling in every new process. With this line before
    it, only the first process pays, until JAX, the model, shapes or settings change. It sets JAX's
    own persistent cache, for everything that the process compiles from then on.

    :param path: folder of the cache, made where it is missing, readable by its owner alone;
        default ``numpyro_dp`` in the platform's folder for caches (``$XDG_CACHE_HOME`` or
        ``~/.cache``, ``~/Library/Caches``, ``%LOCALAPPDATA%``). Nothing in it is ever deleted;
        delete it when you like.
    :returns: the folder.
    :raises OSError: the folder cannot be made.

    **Privacy.** The cache holds compiled programs, and programs of this package hold no record:
    records are arguments of a program and never constants in it, whichever method runs (checked by
    a search of the folder for a planted record). A program may hold what is public: shapes,
    settings, and arguments wrapped in ``numpyro_dp.public``. Plain ``numpyro.infer.MCMC`` without
    ``jit_model_args=True`` does make records constants, and a private kernel in it warns of that.

    **References.** JAX documentation, *Persistent compilation cache*.

    **Example**::

        >>> import tempfile, numpyro_dp as ndp
        >>> folder = ndp.enable_compilation_cache(tempfile.mkdtemp())
        >>> folder.is_dir()
        True
    """
    folder = _default() if path is None else Path(path).expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # A run is made of many small programs; by default JAX keeps none that took less than a second.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # Whether there is a cache JAX decides once, when it first compiles.
    compilation_cache.reset_cache()
    return folder


def _default() -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "numpyro_dp"

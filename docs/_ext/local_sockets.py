"""Pages executed side by side reach their kernels through Unix sockets, not TCP ports.

Jupyter picks free ports before the kernel binds them, so two pages that start at once may pick
the same one and the build fails by chance. A socket file in a folder of its own has no such race.
"""

import functools
import os
import sys
import tempfile

import myst_nb.core.execute.direct as direct
from jupyter_client.manager import AsyncKernelManager
from sphinx.application import Sphinx
from traitlets import default

__all__ = ["setup"]


class _SocketKernelManager(AsyncKernelManager):
    @default("transport")
    def _through_sockets(self) -> str:
        return "ipc"

    @default("ip")
    def _socket_path(self) -> str:
        # Jupyter's own default is relative to the page's folder, which pages share.
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-")
        return os.path.join(self._folder.name, "socket")


def setup(app: Sphinx) -> dict[str, bool]:
    """Let MyST-NB start its kernels through sockets, where the platform has them."""
    if sys.platform != "win32":
        direct.single_nb_execution = functools.partial(
            direct.single_nb_execution, kernel_manager_class=_SocketKernelManager
        )
    return {"parallel_read_safe": True, "parallel_write_safe": True}

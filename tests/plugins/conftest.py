from __future__ import annotations

import pytest

from .kernel_emulation import CSRC, Emulated, compile_emulated, compiler


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    if compiler() is None:
        pytest.skip("needs a C++ compiler")
    library = tmp_path_factory.mktemp("emulated") / "kernels.so"
    return Emulated(compile_emulated(CSRC, "emulated.cpp", library, "-O2"))

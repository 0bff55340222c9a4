"""What all tests share: the level of optimisation, and a garbage collector that leaves the suite itself alone.

Kernels are compiled without the code generator's optimisations, in a third of the time: half of the suite's time would be
LLVM's otherwise. The text of a kernel, which is what this project writes, is the same at every level, and so are its results.
`.ci/run` runs the kernels' and operators' tests once more on optimised code.

Thousands of collected tests and PyTorch's modules live until the end. They are taken out of what the collector walks through,
and new objects are looked at less often. So is, from file to file, what earlier tests have left in caches: every trace of
`ts.compile` may collect, which took seconds where there were millions of objects to walk through, and most of the suite's time.

`--device cuda` runs the operators' tests on tensors of a CUDA device, `--device cuda-emulated` on one that g++ and this
processor stand in for (`tests/emulator`).
"""

import gc
import os
import zlib
from collections.abc import Iterator

import pytest

os.environ.setdefault("TENSORSMITH_OPTIMISATION", "0")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.fixture(autouse=True, scope="module")
def earlier_files_left_alone() -> None:
    """Collect what the tests of other files let go of, then take what they keep out of what the collector walks through."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--approve", action="store_true", help="write the kept texts of CUDA kernels anew, do not compare")
    choices = ("cpu", "cuda", "cuda-emulated")
    parser.addoption("--device", choices=choices, default="cpu", help="where the operators' tests keep their tensors")
    parser.addoption("--one-in", type=int, default=1, metavar="N", help="run every N-th test, by a hash of its name")


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "dist", "") == "load":  # pytest-xdist's own, which parts neighbours that share caches
        config.option.dist = "worksteal"
    device = config.getoption("--device")
    os.environ["TENSORSMITH_TEST_DEVICE"] = device
    if device == "cuda-emulated":
        import emulator

        emulator.activate()
    if device != "cpu":
        import tensorsmith as ts

        ts.backends.cudnn.allow_tf32 = False  # float32 convolutions may round their operands to TF32 otherwise, as PyTorch's


@pytest.fixture(autouse=True)
def where_tensors_are(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With `--device`, new tensors are on the device, those from NumPy too, and `.numpy()` brings values back."""
    device = os.environ["TENSORSMITH_TEST_DEVICE"].removesuffix("-emulated")
    if device == "cpu":
        yield
        return
    import tensorsmith as ts

    monkeypatch.setattr(ts.backends.cudnn, "allow_tf32", False)  # the tests' tolerances are float32's
    if request.path.name == "test_operators.py":  # that one places its operands itself
        yield
        return
    from_numpy, numpy = ts.from_numpy, ts.Tensor.numpy
    monkeypatch.setattr(ts, "from_numpy", lambda array: from_numpy(array).to(device))
    monkeypatch.setattr(ts.Tensor, "numpy", lambda self, *, force=False: numpy(self.detach().cpu() if force else self.cpu()))
    ts.set_default_device(device)
    ts.cuda.set_sync_debug(True)  # what a kernel reports is raised by the call that launched it
    yield
    ts.cuda.set_sync_debug(False)
    ts.set_default_device("cpu")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    parts = config.getoption("--one-in")
    items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts == 0]

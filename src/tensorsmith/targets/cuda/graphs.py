"""Kernel graphs: the launches of several steps as one CUDA graph, which the device runs by itself.

A graph is made by launching its steps over a cell of its own (`graph_text.py`), each after the steps it depends on; steps that
do not depend on each other may run at the same time. `update` gives the kernels of a step new arguments, without making the
graph again; what was launched before keeps the old ones.
"""

from __future__ import annotations

import array
import functools
from collections.abc import Sequence
from ctypes import c_uint64

from tensorsmith.targets.cpu.compiler import compile_functions
from tensorsmith.targets.cpu.launch import launch
from tensorsmith.targets.cpu.recipe import Recipe
from tensorsmith.targets.cuda import devices, driver
from tensorsmith.targets.cuda.devices import Cell
from tensorsmith.targets.cuda.graph_text import EXTENDED, FUNCTIONS, PLAIN, State, graph_text
from tensorsmith.targets.cuda.launcher import failed
from tensorsmith.targets.cuda.launcher_text import Header


class KernelGraph:
    """The steps of a plan as a graph that can be launched.

    recipes: of the steps, made by `launcher.recipe`
    given:   the words of each; after: the numbers of the steps that each comes after
    Errors: CudaError where the driver refuses.
    """

    def __init__(
        self, index: int, recipes: Sequence[Recipe], given: Sequence[Sequence[int | float]], after: Sequence[Sequence[int]]
    ) -> None:
        self.index = index
        self.recipes = list(recipes)
        self.executable = 0
        device = devices.use(index)
        plain, extended = _functions()
        self._cell = array.array("q", device.words)
        self._cell[Cell.LAUNCH], self._cell[Cell.LAUNCH_EXTENDED], self._cell[Cell.DEBUG] = plain, extended, 0
        self._state = array.array("q", [0] * len(State))
        self._cell[Cell.STREAM] = self._state.buffer_info()[0]
        launches = [each for recipe in self.recipes for each in recipe.keep.launches]  # type: ignore[attr-defined]
        attributes = any(each.cluster != (1, 1, 1) or each.together for each in launches)
        for word, name in FUNCTIONS.items():
            if word is not State.SET_ATTRIBUTE or attributes:
                self._state[word] = driver.address(name)
        counts = [len(recipe.keep.launches) for recipe in self.recipes]  # type: ignore[attr-defined]
        self._nodes = array.array("Q", [0] * (sum(counts) + 1))
        self._state[State.NODES] = self._nodes.buffer_info()[0]
        self._first = [sum(counts[:number]) for number in range(len(counts))]
        graph = driver.call("cuGraphCreate", 0)
        try:
            self._state[State.GRAPH] = int(graph)
            for number, words in enumerate(given):
                before = [self._first[k] + counts[k] - 1 for k in after[number] if counts[k]]
                handles = array.array("Q", [self._nodes[k] for k in before] or [0])
                self._state[State.DEPENDENCIES], self._state[State.COUNT] = handles.buffer_info()[0], len(before)
                self._over_own_cell(number, words)
            self.executable = int(driver.call("cuGraphInstantiate", graph, 0))
        finally:
            self._graph = graph  # nodes are known by its handles as long as it lives
        self._state[State.EXECUTABLE], self._state[State.UPDATES] = self.executable, 1

    def update(self, number: int, words: Sequence[int | float]) -> None:
        """Give the kernels of a step other words from the next launch on."""
        self._state[State.NEXT] = self._first[number]
        self._over_own_cell(number, words)

    def launch(self, stream: int) -> None:
        """Run all steps after what the stream has been given so far."""
        driver.call("cuGraphLaunch", self.executable, stream)

    def _over_own_cell(self, number: int, words: Sequence[int | float]) -> None:
        recipe = self.recipes[number]
        cell = c_uint64.from_address(recipe.keep.address + 8 * Header.CELL)  # type: ignore[attr-defined]
        before, cell.value = cell.value, self._cell.buffer_info()[0]
        try:
            code = launch(recipe.address, *words)
        finally:
            cell.value = before
        if code is not None:
            raise failed(recipe, code)

    def __del__(self) -> None:
        try:
            if self.executable:
                driver.status("cuGraphExecDestroy", self.executable)
            graph = getattr(self, "_graph", None)
            if graph is not None:
                driver.status("cuGraphDestroy", graph)
        except Exception:  # noqa: BLE001  the interpreter or the driver is ending
            pass


@functools.cache
def _functions() -> tuple[int, int]:
    plain, extended = compile_functions(graph_text(), [PLAIN, EXTENDED])
    return plain, extended

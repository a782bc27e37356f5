"""Compiling and timing take turns, and neither waits for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from nearhint_daemon.quiet import Patience, Quiet

NEVER_LATE = Patience(lull_s=60, drain_s=60, handover_s=0.001, quiet_s=60)


class Scene:
    """A Quiet, what happened in it, and work that goes on until it is released."""

    def __init__(self, patience: Patience) -> None:
        self.quiet = Quiet(time.monotonic, patience)
        self.happened: list[str] = []
        self.begun: dict[str, asyncio.Event] = {}
        self.release: dict[str, asyncio.Event] = {}

    def compile(self, name: str) -> asyncio.Task[None]:
        return asyncio.create_task(self._hold(name, is_timing=False))

    def time(self, name: str) -> asyncio.Task[None]:
        return asyncio.create_task(self._hold(name, is_timing=True))

    async def _hold(self, name: str, *, is_timing: bool) -> None:
        release = self.release.setdefault(name, asyncio.Event())
        begun = self.begun.setdefault(name, asyncio.Event())
        async with self.quiet.timing() if is_timing else self.quiet.compiling():
            self.happened.append(name)
            begun.set()
            await release.wait()
            self.happened.append(f"{name} ends")

    async def until_begun(self, name: str) -> None:
        async with asyncio.timeout(10):
            await self.begun.setdefault(name, asyncio.Event()).wait()

    def let_go(self, *names: str) -> None:
        for name in names:
            self.release.setdefault(name, asyncio.Event()).set()


def played(
    scenario: Callable[[Scene], Awaitable[None]], patience: Patience = NEVER_LATE
) -> list[str]:
    async def run() -> list[str]:
        scene = Scene(patience)
        async with asyncio.timeout(30):
            await scenario(scene)
        return scene.happened

    return asyncio.run(run())


def test_what_is_timed_waits_until_compilers_have_ended() -> None:
    async def scenario(scene: Scene) -> None:
        tasks = [scene.compile("compile")]
        await scene.until_begun("compile")
        tasks.append(scene.time("time"))
        scene.let_go("compile", "time")
        await asyncio.gather(*tasks)

    assert played(scenario) == ["compile", "compile ends", "time", "time ends"]


def test_nothing_new_is_compiled_once_something_waits_to_be_timed() -> None:
    async def scenario(scene: Scene) -> None:
        tasks = [scene.compile("old")]
        await scene.until_begun("old")
        tasks.append(scene.time("time"))
        await asyncio.sleep(0)
        tasks.append(scene.compile("new"))
        scene.let_go("old", "new", "time")
        await asyncio.gather(*tasks)

    assert played(scenario) == ["old", "old ends", "time", "time ends", "new", "new ends"]


def test_quiet_is_kept_for_the_next_who_times() -> None:
    async def scenario(scene: Scene) -> None:
        tasks = [scene.time("first")]
        await scene.until_begun("first")
        tasks.append(scene.compile("compile"))
        scene.let_go("first", "compile", "second")
        await tasks[0]
        tasks.append(scene.time("second"))
        await asyncio.gather(*tasks)

    assert played(scenario)[2:] == ["second", "second ends", "compile", "compile ends"]


def test_after_a_long_quiet_compilers_go_first() -> None:
    async def scenario(scene: Scene) -> None:
        tasks = [scene.time("first")]
        await scene.until_begun("first")
        tasks.append(scene.compile("compile"))
        scene.let_go("first", "compile", "second")
        await tasks[0]
        await scene.until_begun("compile")
        tasks.append(scene.time("second"))
        await asyncio.gather(*tasks)

    patience = Patience(lull_s=60, drain_s=60, handover_s=60, quiet_s=0)
    assert played(scenario, patience)[2:] == ["compile", "compile ends", "second", "second ends"]


def test_a_compiler_that_does_not_end_delays_what_is_timed_no_longer_than_allowed() -> None:
    async def scenario(scene: Scene) -> None:
        tasks = [scene.compile("compile")]
        await scene.until_begun("compile")
        await scene.quiet.lull()
        tasks.append(scene.time("time"))
        await scene.until_begun("time")
        scene.let_go("compile", "time")
        await asyncio.gather(*tasks)

    patience = Patience(lull_s=0.001, drain_s=0.001, handover_s=0.001, quiet_s=60)
    assert played(scenario, patience)[:2] == ["compile", "time"]


def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    async def scenario(scene: Scene) -> None:
        tasks = [scene.compile("compile")]
        await scene.until_begun("compile")
        waiting = scene.time("gone")
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        scene.let_go("compile", "next")
        tasks.append(scene.compile("next"))
        await asyncio.gather(*tasks)

    assert "gone" not in played(scenario)

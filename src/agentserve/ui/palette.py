"""The palette and its entries: the actions that are possible now."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider

from agentserve.domain.text import printable
from agentserve.ui.actions import ACTIONS, Action
from agentserve.ui.conditions import against_switch, switch_verb
from agentserve.ui.frame import Frame
from agentserve.ui.screens.base import FrameScreen

_LEFT_OUT = frozenset({"app.palette", "view.back"})


@runtime_checkable
class HasFrame(Protocol):
    """The app, as far as the palette knows it."""

    @property
    def frame(self) -> Frame:
        """What is shown now."""

    def switch_to(self, name: str) -> None:
        """Start a preset or switch to it."""


class Palette(CommandPalette):
    """The palette, whose page keys wait for a list that is filled and not laid out yet."""

    def _action_command_list(self, action: str) -> None:
        # Textual looks the page up among rows that are laid out. A list that was refilled has none
        # until the next layout, and the lookup would end the app.
        with contextlib.suppress(KeyError, IndexError):
            super()._action_command_list(action)


class ActionProvider(Provider):
    """Offers each possible action by title and help text, with its key."""

    async def discover(self) -> Hits:
        """Yield all possible actions."""
        for action, title in self._possible():
            yield DiscoveryHit(title, self._run(action), help=action.help)

    async def search(self, query: str) -> Hits:
        """Yield the possible actions that match `query`."""
        matcher = self.matcher(query)
        for action, title in self._possible():
            score = max(matcher.match(title), matcher.match(action.help) * 0.5)
            if score > 0:
                yield Hit(score, matcher.highlight(title), self._run(action), help=action.help)

    def _possible(self) -> list[tuple[Action, str]]:
        frame = cast("HasFrame", self.app).frame
        scopes = {""}
        if isinstance(self.screen, FrameScreen):
            frame = self.screen.with_choice(frame)
            scopes.add(self.screen.SCOPE)
        return [
            (action, _title(action, frame))
            for action in ACTIONS
            if action.id not in _LEFT_OUT
            and action.scope in scopes
            and action.against(frame) is None
        ]

    def _run(self, action: Action) -> partial[Coroutine[Any, Any, bool]]:
        return partial(self.app.run_action, action.call)


class PresetProvider(Provider):
    """Offers the presets that no digit key selects."""

    async def discover(self) -> Hits:
        """Yield them all."""
        for name, title, text in self._possible():
            yield DiscoveryHit(title, self._run(name), help=text)

    async def search(self, query: str) -> Hits:
        """Yield those that match `query`."""
        matcher = self.matcher(query)
        for name, title, text in self._possible():
            score = max(matcher.match(title), matcher.match(text) * 0.5)
            if score > 0:
                yield Hit(score, matcher.highlight(title), self._run(name), help=text)

    def _possible(self) -> list[tuple[str, str, str]]:
        frame = cast("HasFrame", self.app).frame
        verb = switch_verb(frame)
        return [
            (preset.name, f"{verb} {printable(preset.name, 40)}", printable(preset.title, 80))
            for preset in frame.presets
            if preset.slot is None and against_switch(frame, preset.name) is None
        ]

    def _run(self, name: str) -> Callable[[], None]:
        return partial(cast("HasFrame", self.app).switch_to, name)


def _title(action: Action, frame: Frame) -> str:
    key = action.key_at(frame)
    return f"{action.title_at(frame)}  ({key})" if key else action.title_at(frame)

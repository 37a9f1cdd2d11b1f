"""The palette's entries: the actions that are possible now."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

from textual.command import DiscoveryHit, Hit, Hits, Provider

from agentserve.ui.actions import ACTIONS, Action
from agentserve.ui.frame import Frame

_LEFT_OUT = frozenset({"app.palette", "view.back"})


@runtime_checkable
class HasFrame(Protocol):
    """The app, as far as the palette knows it."""

    @property
    def frame(self) -> Frame:
        """What is shown now."""


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
        return [
            (action, _title(action, frame))
            for action in ACTIONS
            if action.id not in _LEFT_OUT and action.against(frame) is None
        ]

    def _run(self, action: Action) -> partial[Coroutine[Any, Any, bool]]:
        return partial(self.app.run_action, action.call)


def _title(action: Action, frame: Frame) -> str:
    key = action.key_label
    return f"{action.title_at(frame)}  ({key})" if key else action.title_at(frame)

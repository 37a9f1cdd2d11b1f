"""The actions that make changes pending and take them back."""

from __future__ import annotations

from agentserve.domain.pending import ToggleOption
from agentserve.ui.action import Action, key_for
from agentserve.ui.frame import Frame


def _against_change(frame: Frame) -> str | None:
    if frame.engine_missing:
        return frame.engine_missing
    if frame.engine.preset is None:
        return f"Choose a preset first ({key_for('view.presets', frame.keys_of)})."
    return None


def _against_drop(frame: Frame) -> str | None:
    return None if frame.engine.pending is not None else "Nothing is pending."


def _against_stay(frame: Frame) -> str | None:
    return None if frame.engine.drain is not None else "No switch is waiting."


CHANGE_ACTIONS: tuple[Action, ...] = (
    Action(
        "change.budget_down",
        "step_budget(-1)",
        "budget down",
        "Make the next smaller token budget of a step pending: shorter prefill chunks.",
        "Changes",
        ("b",),
        in_bar=True,
        bar_text=("b/B", "budget"),
        against=_against_change,
    ),
    Action(
        "change.budget_up",
        "step_budget(1)",
        "budget up",
        "Make the next larger token budget of a step pending.",
        "Changes",
        ("B",),
        against=_against_change,
    ),
    Action(
        "change.draft_tokens",
        "cycle_draft_tokens",
        "MTP",
        "Make one more MTP draft token pending, 1 to 4, then off.",
        "Changes",
        ("m",),
        in_bar=True,
        bar_rank=2,
        against=_against_change,
    ),
    *(
        Action(
            f"change.{name}",
            f"ask_value({option.value!r})",
            f"set {what}",
            f"Write a number for {means}; it becomes pending.",
            "Changes",
            against=_against_change,
        )
        for name, option, what, means in (
            ("set_seats", ToggleOption.SEATS, "seats", "how many sequences run at once"),
            ("set_context", ToggleOption.CONTEXT, "context", "the longest sequence in tokens"),
            ("set_budget", ToggleOption.TOKEN_BUDGET, "budget", "the token budget of a step"),
            ("set_draft_tokens", ToggleOption.DRAFT_TOKENS, "MTP", "the MTP draft tokens"),
        )
    ),
    Action(
        "change.drop",
        "drop_pending",
        "drop changes",
        "Forget all pending changes.",
        "Changes",
        against=_against_drop,
    ),
    Action(
        "engine.stay",
        "stay",
        "cancel switch",
        "Give up a switch that waits for requests; the engine serves on.",
        "Changes",
        against=_against_stay,
    ),
)

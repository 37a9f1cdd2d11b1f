"""What the toggle keys would change: the value that counts now, and the next one. Pure.

A toggle starts from what is pending, else from what runs, else from what the preset says.
"""

from __future__ import annotations

from agentserve.domain.errors import AgentServeError
from agentserve.domain.lifecycle import EngineFacts, EngineState
from agentserve.domain.pending import PendingChange, ToggleOption
from agentserve.domain.toggles import MAX_STEPPED_DRAFT_TOKENS, next_step
from agentserve.ui.formatting import DASH
from agentserve.ui.frame import RUNNING_STATES, Frame

NAMES = {
    ToggleOption.TOKEN_BUDGET: "budget",
    ToggleOption.DRAFT_TOKENS: "MTP",
    ToggleOption.SEATS: "seats",
    ToggleOption.CONTEXT: "context",
}
UNITS = {
    ToggleOption.TOKEN_BUDGET: "tok per step",
    ToggleOption.DRAFT_TOKENS: "draft tok",
    ToggleOption.SEATS: "sequences at once",
    ToggleOption.CONTEXT: "tok",
}
LEAST_VALUES = {
    ToggleOption.TOKEN_BUDGET: 1,
    ToggleOption.DRAFT_TOKENS: 0,
    ToggleOption.SEATS: 1,
    ToggleOption.CONTEXT: 1,
}
_MOST_DIGITS = 9


def number_in(text: str, least: int) -> int:
    """Read a whole number as people write it: `98304`, `98,304`, `98 304`, `96k` (x 1024).

    Raises:
        AgentServeError: It is no number, or smaller than `least`.
    """
    digits = "".join(text.split()).replace(",", "").replace("_", "").lower()
    factor = 1_024 if digits.endswith("k") else 1
    digits = digits.removesuffix("k")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > _MOST_DIGITS:
        raise AgentServeError("That is not a whole number.", "Write for example 4096 or 96k.")
    value = int(digits) * factor
    if value < least:
        raise AgentServeError(f"The least value is {least}.")
    return value


def current_value(frame: Frame, option: ToggleOption) -> int | None:
    """Return the value that a toggle starts from, or None when vLLM's default applies."""
    pending = frame.engine.pending
    for change in pending.changes if pending else ():
        if change.option is option:
            return change.after
    return present_value(frame, option)


def present_value(frame: Frame, option: ToggleOption) -> int | None:
    """Return the value without pending changes: the running one, else the preset's."""
    preset = next((each for each in frame.presets if each.name == frame.engine.preset), None)
    running = _running(frame, option) if frame.state in RUNNING_STATES else None
    if running is not None or preset is None:
        return running
    return preset.value_of(option)


def next_budget(frame: Frame, direction: int) -> int:
    """Return the next smaller (-1) or larger (+1) budget; the same one at the end."""
    option = ToggleOption.TOKEN_BUDGET
    return next_step(option, current_value(frame, option), direction, _facts(frame))


def next_draft_tokens(frame: Frame) -> int:
    """Return the next number of draft tokens: one more, and 0 after the most."""
    value = current_value(frame, ToggleOption.DRAFT_TOKENS) or 0
    return value + 1 if value < MAX_STEPPED_DRAFT_TOKENS else 0


def written(option: ToggleOption, value: int | None) -> str:
    """Write a value as people read it: `2,048`, `off`; a dash for vLLM's default."""
    if value is None:
        return DASH
    if option is ToggleOption.DRAFT_TOKENS and value == 0:
        return "off"
    return f"{value:,}"


def change_text(change: PendingChange) -> tuple[str, str, str]:
    """Write a change as its name, the value before and the value after."""
    return (
        NAMES[change.option],
        written(change.option, change.before),
        written(change.option, change.after),
    )


def _facts(frame: Frame) -> EngineFacts | None:
    """Take from the snapshot what steps depend on: the grid of blocks and the pool's capacity."""
    engine, kv = frame.engine, frame.snapshot.kv
    if frame.state is not EngineState.READY:
        return None
    return EngineFacts(
        vllm_version=engine.vllm_version or "",
        device=engine.device or "",
        model=engine.model or "",
        served_model_name="",
        tensor_parallel_size=engine.tensor_parallel_size or 1,
        max_model_len=engine.settings.max_model_len or 0,
        block_tokens=kv.block_tokens,
        capacity_tokens=kv.capacity_tokens,
    )


def _running(frame: Frame, option: ToggleOption) -> int | None:
    settings = frame.engine.settings
    match option:
        case ToggleOption.TOKEN_BUDGET:
            return settings.max_num_batched_tokens
        case ToggleOption.DRAFT_TOKENS:
            return settings.speculative_tokens
        case ToggleOption.SEATS:
            return settings.max_num_seqs
        case ToggleOption.CONTEXT:
            return settings.max_model_len

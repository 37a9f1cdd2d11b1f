"""What each figure of the session panels is, where it comes from, and what to do about it."""

from __future__ import annotations

from agentserve.ui.explanation import Explanation

_NEWEST = "The session's newest turn."
_TURN = "One turn; nothing is averaged."
_POOL = "Now: the newest engine step."
_EVENTS = "vLLM's cache events, replayed in this process."
_STABLE = "Keep what is stable at the front of the prompt: no clock, id or status line there."
_NO_CHANGE = "Nothing to change here."

_PROMPT = Explanation(
    "Tokens of the prompt, cached ones included.",
    "vLLM's tokenizer.",
    _NEWEST,
    "Below 90 % of max_model_len, or the agent must compact soon.",
    "The context limit in the agent's settings; max_model_len.",
)
_CACHED = Explanation(
    "Prompt tokens that came from the prefix cache; a dash where vLLM did not say.",
    "vLLM's record of the request.",
    _NEWEST,
    "Nearly the whole prompt from the second turn on.",
    _STABLE,
)
_COMPUTED = Explanation(
    "Prompt tokens that had to be prefilled.",
    "vLLM's record of the request.",
    _NEWEST,
    "One or two blocks and what is new in this turn.",
    _STABLE,
)
_HIT_RATE = Explanation(
    "Cached / prompt tokens of the session.",
    "vLLM's record of each request.",
    "All its turns since this engine became ready that report both; n is beside it.",
    "80 to 90 % after some turns. The first turn is always cold.",
    _STABLE,
)
_TTFT = Explanation(
    "From the request's arrival to its first output, its wait included.",
    "Measured in this process.",
    _NEWEST,
    "It follows the computed tokens.",
    "Fewer computed tokens; fewer requests at once.",
)
_VERDICT = Explanation(
    "Why the turn reused what it did. A tick is harmless, ! lost reuse, ? is not known.",
    "The prompt compared with the turn before, and vLLM's own count of cached tokens.",
    _NEWEST,
    "Full reuse or block rounding; the first request of a session is always cold.",
    "Open the session: it shows the place that changed, and what to do.",
)

_COLUMNS: dict[str, Explanation] = {
    "turns": Explanation(
        "Requests of this session. ↳ before a name marks a side query of an agent, as for a title.",
        "Counted in this process; an id of the client or the prompt itself tells sessions apart.",
        "Since the app started, over all engine starts.",
        "It grows with the work of the agent.",
        "Send X-Session-ID when sessions are mixed up.",
    ),
    "prompt": _PROMPT,
    "cached": _CACHED,
    "expected": Explanation(
        "Prompt tokens that were reusable just before the request's first step, worked out before"
        " vLLM's figure is read.",
        "The prompt's blocks and what was resident then.",
        _NEWEST,
        "Equal to cached. Where it differs, our picture of the cache is wrong.",
        _NO_CHANGE,
    ),
    "computed": _COMPUTED,
    "hit rate": _HIT_RATE,
    "n": Explanation(
        "Turns that the hit rate stands for.",
        "Counted in this process.",
        "Since this engine became ready.",
        "Do not believe the rate of a few turns.",
        _NO_CHANGE,
    ),
    "resident": Explanation(
        "Share of the session's newest prompt that a next turn could reuse now.",
        _EVENTS,
        _POOL,
        "Close to 100 %, less a block. It falls when others evict the session.",
        "A larger KV pool, or fewer agents at once.",
    ),
    "TTFT": _TTFT,
    "last verdict": _VERDICT,
    "idle": Explanation(
        "Time since its last request began or ended; running while one runs.",
        "Measured in this process.",
        "Now.",
        "Long idle sessions lose their blocks first.",
        _NO_CHANGE,
    ),
    "pool": Explanation(
        "Sessions with the same name here can share prefixes; common is the pool of all without"
        " one.",
        "The cache salt of its requests.",
        _NEWEST,
        "common, unless users must not see each other's timing.",
        "The setting that gives each API key a cache of its own.",
    ),
}

_SESSIONS = Explanation(
    "Agent sessions that were seen; the newest of them are kept.",
    "Requests told apart by an id of the client, else by their prompts.",
    "Since the app started.",
    "One for each conversation of your agents, and one for each kind of side query.",
    "Open the view of sessions to see each of them.",
)

SESSION_EXPLANATIONS: dict[str, dict[str, Explanation]] = {
    "sessions": {
        "session": _SESSIONS,
        "sessions": _SESSIONS,
        "lost reuse": Explanation(
            "Sessions whose newest turn computed again what it could have reused, and the cause in"
            " the newest of them.",
            "The prompt compared with the turn before, and vLLM's own count of cached tokens.",
            _NEWEST,
            "0.",
            "Open the view of sessions, then the session.",
        ),
        **_COLUMNS,
    },
    "session-pool": {
        "used, not cached": Explanation(
            "Blocks in use that nobody else could reuse: total less free less cached.",
            "The scheduler's block pool and the cache's events.",
            _POOL,
            "Little: the unfinished block of each running request.",
            _NO_CHANGE,
        ),
        "no known session": Explanation(
            "Cached blocks that no session in the list computed.",
            _EVENTS,
            _POOL,
            "Little; they come from requests before the list began or from sessions that left it.",
            _NO_CHANGE,
        ),
        "in use": Explanation(
            "Blocks that running requests hold, cached or not.",
            "The scheduler's block pool, asked by our plugin; a dash where it cannot be asked.",
            _POOL,
            "Below 95 % of all while agents work; 0 when nothing runs.",
            "Fewer seats (max_num_seqs) or a smaller kv_cache_dtype.",
        ),
        "warm": Explanation(
            "Cached blocks that nobody uses: reusable, and the next to be evicted.",
            "The scheduler's block pool, asked by our plugin; a dash where it cannot be asked.",
            _POOL,
            "Much of it: that is the next turns of your agents.",
            "Restarts forget it all.",
        ),
        "free": Explanation(
            "Blocks that hold nothing.",
            "The scheduler's block pool, asked by our plugin; a dash where it cannot be asked.",
            _POOL,
            "0 is normal after some time: warm blocks are given away when room is needed.",
            _NO_CHANGE,
        ),
    },
    "session-table": _COLUMNS,
    "session-footer": {
        "predicted right": Explanation(
            "Turns whose expected tokens were those that vLLM reused, of all with both figures: the"
            " error rate of this view.",
            "Counted in this process.",
            "Since this engine became ready.",
            "Nearly all of them. The verdicts of the others are less sure.",
            _NO_CHANGE,
        ),
        "prefill speed": Explanation(
            "Prompt tokens computed per second of prefill; lost tokens are turned into seconds"
            " with it.",
            "Measured on the computed tokens of all turns.",
            "Since this engine became ready.",
            "Hundreds to thousands.",
            "max_num_batched_tokens.",
        ),
        "last eviction": Explanation(
            "Who lost cached blocks last, to make room for whom.",
            _EVENTS,
            "The newest ones, as many as there are rows; those within a second are joined.",
            "Rare. Agents that evict each other in turns compute everything again.",
            "A larger KV pool, a shorter context, or fewer agents at once.",
        ),
    },
    "session-timeline": {
        "hit rate": _HIT_RATE,
        "resident": Explanation(
            "Tokens from the start of the newest prompt that a next turn could reuse now, of all"
            " its tokens.",
            _EVENTS,
            _POOL,
            "All of them, less a block.",
            "A larger KV pool, or fewer agents at once.",
        ),
        "TTFT": _TTFT,
        "cached": _CACHED._replace(window=_TURN),
        "computed": _COMPUTED._replace(window=_TURN),
        "output": Explanation(
            "Tokens generated in the turn, thinking included.",
            "vLLM's record of the request.",
            _TURN,
            "It becomes part of the next prompt, unless the agent drops it.",
            _NO_CHANGE,
        ),
        "verdict": _VERDICT._replace(window=_TURN),
    },
}

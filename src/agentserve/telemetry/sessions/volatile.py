"""Values that change by themselves: clocks, dates, counters, random ids, nonces.

Owns what such values look like in a text. It must not know prompts, parts or tokens. It would
rather miss one than take edited prose or code for one: numbers count only beside words that count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

from agentserve.domain.session import VolatileKind
from agentserve.telemetry.sessions.token_prefix import common_prefix_length

_SETTLED_CHARACTERS = 24
"""Equal characters behind a value after which the change counts as over."""
_LOOK_BACK = 96
_LOOK_AHEAD = 128
"""Characters around a difference that are searched: longer than any value with its label."""
_MOST_VALUES = 32
"""Changed values in a row after which no more are looked for: each costs as much as the text."""

_YEAR = r"(?:19|20)\d\d"
_MONTH_NUMBER = r"(?:0[1-9]|1[0-2])"
_DAY_NUMBER = r"(?:0[1-9]|[12]\d|3[01])"
_DAY = r"(?:0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_WEEKDAY = r"(?:Mon|Tue(?:s)?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_TIME = r"(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d+)?)?"
_ZONE = r"(?:Z|[+-]\d\d:?\d\d)?"
_HALF_DAY = r"(?:[ap]m|[ap]\.m\.|[AP]M|[AP]\.M\.)"

_TIMESTAMP = re.compile(
    rf"(?<![\w.-])(?P<value>{_YEAR}-{_MONTH_NUMBER}-{_DAY_NUMBER}[T ]{_TIME}{_ZONE}"
    rf"|{_YEAR}{_MONTH_NUMBER}{_DAY_NUMBER}T\d{{4}}(?:\d\d)?Z?)(?!\w)"
)
_EPOCH = re.compile(
    # 2017 to 2036, in seconds, milliseconds, microseconds or nanoseconds.
    r"(?<![\w.-])(?P<value>(?:1[5-9]|20)\d{8}(?:\d{3}|\d{6}|\d{9}|\.\d+)?)(?![\w-]|\.\d)"
)
_CLOCK = re.compile(
    rf"(?<![\w:.-])(?<!\w\[)(?P<value>{_TIME}(?:\s?{_HALF_DAY})?{_ZONE}"
    rf"|(?:1[0-2]|0?[1-9])\s?{_HALF_DAY})(?![\w:])"
)
_DATE = re.compile(
    r"(?<![\w.-])(?P<value>"
    rf"{_YEAR}(?P<dash>[-/.]){_MONTH_NUMBER}(?P=dash){_DAY_NUMBER}"
    rf"|{_YEAR}{_MONTH_NUMBER}{_DAY_NUMBER}"
    rf"|(?:0?[1-9]|[12]\d|3[01])(?P<dot>[-/.])(?:0?[1-9]|[12]\d|3[01])(?P=dot){_YEAR}"
    rf"|(?:{_WEEKDAY},?\s+)?(?:{_MONTH}\.?\s+{_DAY}|{_DAY}\.?\s+{_MONTH}\.?)(?:,?\s+{_YEAR})?"
    r")(?![\w-])"
)
_WEEKDAY_NOW = re.compile(
    rf"(?i:\b(?:today|day|date|weekday)(?:\s+is)?)[\"'*`]*\s*[:=]?\s*(?P<value>{_WEEKDAY})\b"
)
_NONCE = re.compile(
    r"(?i)(?<![a-z])(?:nonce|cache[-_ ]?buster|cch|idempotency[-_ ]?key"
    r"|(?:request|req|trace|span|correlation|message|run|session|conversation|invocation)"
    r"[-_ ]?(?:uu)?id)[\"'*`]*\s*[:=#]?\s*[\"'`]?(?P<value>[0-9a-z][\w-]{3,79})"
)
_TOKEN = re.compile(r"(?<!\w)(?P<value>[0-9A-Za-z]+(?:[_-]+[0-9A-Za-z]+)*)")

_NUMBER = r"(?P<value>\d{1,3}(?:,\d{3})+|\d{1,9}(?:\.\d+)?)[kKM]?(?![\w-]|[.,]\d)"
_COUNTED = r"(?:tokens|turns?|messages?|requests?|steps?|iterations?|calls?|context)"
_COUNTER_LABELLED = re.compile(
    rf"(?i)\b(?:{_COUNTED}[ _-](?:used|left|remaining|so far|count|number)"
    rf"|(?:used|remaining)[ _-]{_COUNTED}|turn|step|iteration|attempt|round|counter|uptime"
    rf"|elapsed|remaining|progress)[\"'*`]*\s*(?:[:=#]+|\bis\b)\s*[\"'`(~]?{_NUMBER}"
)
_COUNTER_NAMED = re.compile(rf"(?i)\b(?:turn|iteration|attempt|round)\s+#?{_NUMBER}")
_COUNTER_OF = re.compile(
    rf"(?i)\b(?:step|message|request|call|task|item|page|part)\s+#?{_NUMBER}(?=\s*(?:of|/)\s*\d)"
)
_COUNTER_BEFORE = re.compile(
    rf"(?i)(?<![\w.,/-]){_NUMBER}(?=%?\s*(?:{_COUNTED}|seconds|minutes|hours)?\s+"
    r"(?:used|left|remaining|so far|elapsed|ago)\b)"
)
_LIMIT = re.compile(
    r"(?i)\b(?:max|maximum|min|minimum|limit|at most|at least|up to|exactly|within|than|every)\b"
    r"[^\n]{0,24}\Z"
)

_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_HEX = re.compile(r"(?:0x)?[0-9a-f]{7,}|(?:0x)?[0-9A-F]{7,}")


def volatile_kind(before_context: str, before: str, after: str) -> VolatileKind | None:
    """Say what kind of value changed by itself, if that is all that changed here.

    Args:
        before_context: What both texts have in common in front of the first difference.
        before: The text from there on as it was, as far as it is known: also what follows the
            changed value, which may begin in the context.
        after: The same as it is now.

    Returns:
        The kind of the first changed value, or of the clock where a date and a clock changed
        together; None when anything else changed before both texts go on alike.
    """
    first, second = before_context + before, before_context + after
    at_first = at_second = len(before_context)
    kinds: list[VolatileKind] = []
    while True:
        found = _values_at(first, at_first, second, at_second)
        if found is None:
            return None
        kind, end_first, end_second = found
        kinds.append(kind)
        behind_first, behind_second = first[end_first:], second[end_second:]
        equal = common_prefix_length(behind_first, behind_second)
        settled = min(_SETTLED_CHARACTERS, len(behind_first), len(behind_second))
        if equal >= settled or len(kinds) == _MOST_VALUES:
            dated = kinds[0] is VolatileKind.DATE and VolatileKind.CLOCK in kinds
            return VolatileKind.CLOCK if dated else kinds[0]
        at_first, at_second = end_first + equal, end_second + equal


def _values_at(
    first: str, at_first: int, second: str, at_second: int
) -> tuple[VolatileKind, int, int] | None:
    """Find the pair of values that covers the difference, and where each ends."""
    for kind, pattern, accepts in _RULES:
        for old in _matches_at(pattern, first, at_first):
            for new in _matches_at(pattern, second, at_second):
                if (
                    at_first - old.start("value") == at_second - new.start("value")
                    and old["value"] != new["value"]
                    and accepts(old, new)
                ):
                    return kind, old.end("value"), new.end("value")
    return None


def _matches_at(pattern: re.Pattern[str], text: str, at: int) -> Iterator[re.Match[str]]:
    """Yield the matches whose value lies around the place: whole values, not what was cut."""
    for match in pattern.finditer(text, max(0, at - _LOOK_BACK), at + _LOOK_AHEAD):
        if match.start("value") <= at <= match.end("value"):
            yield match


def _always(old: re.Match[str], new: re.Match[str]) -> bool:
    return True


def _with_digits(old: re.Match[str], new: re.Match[str]) -> bool:
    """Words after `request id` are prose; ids have digits."""
    return _digits(old["value"]) > 0 and _digits(new["value"]) > 0


def _counts(old: re.Match[str], new: re.Match[str]) -> bool:
    """A number that someone sets, such as `at most 3`, is no counter."""
    start = old.start("value")
    return _LIMIT.search(old.string, max(0, start - _LOOK_BACK), start) is None


def _random(old: re.Match[str], new: re.Match[str]) -> bool:
    """Whether both tokens look drawn at random, apart from a prefix such as `call_`."""
    first, second = old["value"], new["value"]
    if _UUID.fullmatch(first) and _UUID.fullmatch(second):
        return True
    equal = common_prefix_length(first, second)
    prefix = max(first.rfind("_", 0, equal), first.rfind("-", 0, equal)) + 1
    first, second = first[prefix:], second[prefix:]
    differing = sum(one != other for one, other in zip(first, second, strict=False))
    if differing * 5 < max(len(first), len(second)) * 2:
        return False
    return _random_looking(first) and _random_looking(second)


def _random_looking(token: str) -> bool:
    if _UUID.fullmatch(token) or _ULID.fullmatch(token):
        return True
    if any(map(_random_word, re.split("[_-]+", token))):
        return True
    joined = re.sub("[_-]+", "", token)
    return joined.upper() != joined != joined.lower() and _restless(joined)


def _random_word(word: str) -> bool:
    """Names have their digits in one place; random words change between kinds all the time."""
    if _digits(word) in (0, len(word)):
        return False
    kinds = ["0" if c.isdigit() else "a" for c in word]
    digit_changes = sum(one != other for one, other in pairwise(kinds))
    if _HEX.fullmatch(word):
        return len(word) >= 16 or digit_changes >= 2
    return (len(word) >= 10 and digit_changes >= 3) or _restless(word)


def _restless(word: str) -> bool:
    """Whether digits, capitals and small letters take turns as they do in no name."""
    kinds = ["0" if c.isdigit() else "A" if c.isupper() else "a" for c in word]
    changes = sum(one != other for one, other in pairwise(kinds))
    return len(word) >= 16 and _digits(word) > 0 and changes * 2 >= len(word)


def _digits(text: str) -> int:
    return sum(map(str.isdigit, text))


_RULES: tuple[
    tuple[VolatileKind, re.Pattern[str], Callable[[re.Match[str], re.Match[str]], bool]], ...
] = (
    (VolatileKind.NONCE, _NONCE, _with_digits),
    (VolatileKind.CLOCK, _TIMESTAMP, _always),
    (VolatileKind.CLOCK, _EPOCH, _always),
    (VolatileKind.CLOCK, _CLOCK, _always),
    (VolatileKind.DATE, _DATE, _always),
    (VolatileKind.DATE, _WEEKDAY_NOW, _always),
    (VolatileKind.RANDOM_ID, _TOKEN, _random),
    (VolatileKind.COUNTER, _COUNTER_LABELLED, _counts),
    (VolatileKind.COUNTER, _COUNTER_NAMED, _counts),
    (VolatileKind.COUNTER, _COUNTER_OF, _counts),
    (VolatileKind.COUNTER, _COUNTER_BEFORE, _counts),
)
"""First fit wins: what is named as a nonce, then what has the most particular form."""

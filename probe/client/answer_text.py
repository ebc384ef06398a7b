"""The judgement of an answer's text: whether it is what a working model says. Pure.

Only the answer to a question that the configuration asks is judged (`canary.known_answer`). The text of other requests
cannot be: their prompts are random tokens and their answers go on after the model's end of text, so a healthy model
repeats itself there, writes only special tokens, or ends inside a character.
"""

import re

# The answer to a question is short. No correct one is a piece of up to 16 characters eight times in a row.
_REPEATED = re.compile(r"\s*(.{1,16}?)\1{7,}\s*", re.DOTALL)
_REPLACEMENT = "\ufffd"
# A longer answer is judged by its begin; it bounds what an expression can cost.
_MAX_CHARACTERS = 10_000


def corruption(text: str, expects: str, tokens: int, *, is_cut: bool) -> str | None:
    """Return why the text is corrupt, or None. `tokens`: as the server counted; `is_cut`: at the limit of tokens.

    The text itself is not in the reason, because the reason is logged.
    """
    text = text[:_MAX_CHARACTERS]
    if not text.strip():
        return f"the answer to the question has no text, and the server counted {tokens} tokens"
    # An answer that is cut may end inside a character.
    if _REPLACEMENT in (text.rstrip(_REPLACEMENT) if is_cut else text):
        return "the answer to the question contains U+FFFD, the mark of bytes that are no text"
    if (repeated := _REPEATED.fullmatch(text)) is not None:
        return f"the answer to the question is {len(repeated[1])} characters repeated over all of its {tokens} tokens"
    if re.search(expects, text) is None:
        cut = f", and was cut after {tokens} tokens" if is_cut else ""
        return f"the answer to the question does not match canary.known_answer.expect{cut}"
    return None

"""The API server before the engine, at work: one thread, which does one thing after the other. Pure but for its queue.

Input: when a request or a step's tokens came to it. Output: when it turned to them, and when it was done. Used on a
clock (driver.py) and in virtual time (virtual.py).

A step's tokens leave together, when all of them are written: vLLM's own loop hands a step's outputs to the answers
before the first of these is sent. Where tokens cost nothing, they do not wait for requests either.
"""

from probe.simulator.cost import FrontEnd


class FrontEndThread:
    """What it is given in the order of time, it does in that order."""

    def __init__(self, costs: FrontEnd) -> None:
        self.free_at_s = 0.0
        self._costs = costs

    def pass_on(self, at_s: float, prompt_tokens: int) -> float:
        """When the engine has a request that arrived at `at_s`."""
        cost_s = self._costs.request_seconds(prompt_tokens)
        return self._do(at_s, cost_s)[1]

    def hand_out(self, at_s: float, tokens: int) -> tuple[float, float]:
        """When it turned to the tokens of a step that ended at `at_s`, and when they were out."""
        return self._do(at_s, self._costs.per_output_token_s * tokens)

    def _do(self, at_s: float, cost_s: float) -> tuple[float, float]:
        if not cost_s:
            return at_s, at_s
        begun_s = max(self.free_at_s, at_s)
        self.free_at_s = begun_s + cost_s
        return begun_s, self.free_at_s

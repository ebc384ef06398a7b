"""The API server before the engine: one thread that does one thing after another. Pure except for its queue.

Input: when a request or a step's tokens reach it. Output: when it begins with them, and when it is done. Used in real
time (mock_server/driver.py) and in virtual time (virtual_server.py).

A step's tokens leave together, when all of them are written: vLLM's loop hands a step's outputs to the responses before
it sends the first of them. Where tokens cost nothing, they do not wait for requests either.
"""

from probe.simulator.cost import FrontEnd


class FrontEndThread:
    """A queue served in the order of arrival. Calls must come in the order of time."""

    def __init__(self, costs: FrontEnd) -> None:
        self.free_at_s = 0.0
        self._costs = costs

    def pass_on(self, at_s: float, prompt_tokens: int) -> float:
        """Return when the engine gets a request that arrived at `at_s`."""
        cost_s = self._costs.request_seconds(prompt_tokens)
        return self._do(at_s, cost_s)[1]

    def hand_out(self, at_s: float, tokens: int) -> tuple[float, float]:
        """Return when the thread begins with the tokens of a step that ended at `at_s`, and when they are sent."""
        return self._do(at_s, self._costs.per_output_token_s * tokens)

    def _do(self, at_s: float, cost_s: float) -> tuple[float, float]:
        if not cost_s:
            return at_s, at_s
        begun_s = max(self.free_at_s, at_s)
        self.free_at_s = begun_s + cost_s
        return begun_s, self.free_at_s

"""Load: one step of requests, and the guarded step-up made of them."""

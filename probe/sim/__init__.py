"""An embedded stand-in for a vLLM server: made-up timings, real scheduling, the real server's bytes and series."""

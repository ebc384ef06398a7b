"""Kneewatch's plugin for vLLM: what each engine step held, and how long it took. Imports nothing of Kneewatch."""

"""Results for people (tables) and for programs (JSON)."""

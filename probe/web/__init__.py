"""The pages Kneewatch serves."""

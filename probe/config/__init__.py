"""The configuration: YAML to checked, frozen models."""

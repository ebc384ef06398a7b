"""The series by what they describe, a file for each; exporters/names.py has them all."""

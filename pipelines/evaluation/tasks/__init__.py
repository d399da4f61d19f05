"""The kinds of tasks: what a model is asked about an example, and how its answers are measured."""

"""Train a model of your own with STAR: parameter servers or rings, stragglers seen and lived with.

``star_train.torch`` is the client for PyTorch. ``docs/python.md`` in the project has the five-minute tour.
"""

__version__ = "0.1.0"

from ._link import AgentLost, JobError, StarError  # noqa: E402

__all__ = ["AgentLost", "JobError", "StarError", "__version__"]

"""Several models and streams on one device: priorities, budgets, cores, batches, memory."""

from edgeopt.runtime.schedule.memory import MemoryChange
from edgeopt.runtime.schedule.model import ScheduledModel
from edgeopt.runtime.schedule.scheduler import Scheduler
from edgeopt.runtime.schedule.turns import Terms

__all__ = ["MemoryChange", "ScheduledModel", "Scheduler", "Terms"]

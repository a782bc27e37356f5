"""Jobs: durable work, one of a key at a time however many ask, by priority, with leases.

A job is acknowledged once its row is committed. Its handler keeps each result as it comes, so that
a job that is run again, after a crash or a lost worker, goes on where the last attempt ended.
Within a lane jobs run by (priority, stage, heat, arrival), where heat says how much a job's result
would be used now; a job whose `requires` is open waits for it.
"""

from nearhint_daemon.jobs.passing import PASSING_CODES
from nearhint_daemon.jobs.queue import RESTARTS, SUSPECTED_RESTARTS, JobQueue
from nearhint_daemon.jobs.spec import OPEN_STATES, Handler, JobSpec, Observer, Priority

__all__ = [
    "OPEN_STATES",
    "PASSING_CODES",
    "RESTARTS",
    "SUSPECTED_RESTARTS",
    "Handler",
    "JobQueue",
    "JobSpec",
    "Observer",
    "Priority",
]

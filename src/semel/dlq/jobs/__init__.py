"""Jobs: long operations on dead-letter queues that can be followed, paused, resumed and cancelled, by any process."""

from semel.dlq.jobs.job import Counts as Counts
from semel.dlq.jobs.job import Job as Job
from semel.dlq.jobs.job import JobCancelled as JobCancelled
from semel.dlq.jobs.job import JobRecord as JobRecord
from semel.dlq.jobs.job import JobStopped as JobStopped
from semel.dlq.jobs.job import Line as Line
from semel.dlq.jobs.job import State as State
from semel.dlq.jobs.job_control import JobNotRunning as JobNotRunning
from semel.dlq.jobs.job_store import MAX_JOBS as MAX_JOBS
from semel.dlq.jobs.job_store import Control as Control
from semel.dlq.jobs.job_store import Jobs as Jobs
from semel.dlq.jobs.job_store import NoSuchJob as NoSuchJob
from semel.dlq.jobs.job_store import polled as polled

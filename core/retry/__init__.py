"""The retry queue: who missed a job, and how the job is delivered once."""

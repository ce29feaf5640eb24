"""All that touches Salt's master: the bus, publishing, questions to minions, the job cache, access."""

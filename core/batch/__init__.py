"""
Asynchronous batches. A batch goes this way; each file says at its head what it is for:

    starting     from what an operator typed to a Spec: options, target, groups, rights
                 (rollout, minion_data, permission; plan, spec)
    shell        adopts batches, and makes facts of what the log, the bus and requests tell
    live         writes a fact to the batch's journal, then has the machine's effects carried out (store, ports)
    machine      facts in, effects out: sending, holding, ending, over the state and its parts
                 (facts, state, kept; pending, pace, gates, inflight, outcomes)
    effects      publishes, asks, looks up, announces; each outcome is a fact again
    late         returns that come after the batch has ended

``sharing`` divides minions among batches, as ``allotting`` asks. summary, words and metrics tell how a batch stands;
catalog, watch, tables and doctor show it to users of the runner.
"""

"""
Asynchronous batches. A batch takes this path through the files; the head of each says what the file is for:

    starting     makes a Spec from what an operator typed: options, target, groups, rights
                 (minion_data, permission; spec)
    shell        adopts batches, and turns what the log, the bus and requests say into facts
    live         writes what a fact has changed, then has the machine's effects carried out (store); and says to how
                 many minions each batch may send beside the others
    machine      facts in, effects out (facts): reaches the next minions; ending has the rest (returns, overdue minions,
                 kills, those that are away). Both work on the state (who is still to be sent to) and its parts: member
                 (what is known of each other one, and what follows) and pace (how many at a time, and when)
    effects      publishes, asks, looks up, announces; each outcome is a fact again

summary tells how a batch stands; catalog, watch, tables and doctor serve the runner.
"""

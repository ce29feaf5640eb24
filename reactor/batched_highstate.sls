# Applies the highstate to all minions, a tenth of them at a time, when an operator asks for it with an event:
#
#     salt-run event.send operations/highstate
#
# In the master's configuration (the directory is that of the installed package):
#
#     reactor:
#       - operations/highstate:
#         - /…/saltext/jobs/reactor/batched_highstate.sls
#
# Any accepted minion can fire an event of any such name. So nothing of the event is used here: whoever can fire it can
# start this one job, and no other. Do not hang it on an event that comes often, and do not read `data` in it.
batched highstate:
  runner.batch.start:
    - args:
      - tgt: '*'
      - fun: state.apply
      - batch: 10%

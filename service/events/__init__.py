"""Following a study live: one poller of the event table a process, any number of followers.

feed        the poller and what a follower is given
stream      a follower's HTTP answer (server-sent events)
"""

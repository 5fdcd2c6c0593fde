"""What a trial trains: tasks by name, their configurations, and one engine for all of them.

`search` and `service` use `tasks.registry` and `tasks.config` (no torch), and `tasks.runs.open_run` to train.
"""

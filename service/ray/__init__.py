"""Ray as the service uses it: one of its own or a cluster, machines that join, and the drivers of studies."""

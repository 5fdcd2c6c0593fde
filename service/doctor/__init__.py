"""`admeta doctor`: what everything rests on, looked at one by one, each with what to do where it fails.

`client` looks at what every installation has; `server` at what a service needs, and only where its packages are.
"""

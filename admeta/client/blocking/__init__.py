# Generated from admeta/client/asynchronous/__init__.py by `make client`; edit that file.
"""The client for asyncio. `admeta.client.blocking` is generated from this package: `make client`."""

"""The client for asyncio. `admeta.client.blocking` is generated from this package: `make client`."""

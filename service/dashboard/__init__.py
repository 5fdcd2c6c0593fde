"""Pages for people: what the API says, drawn. Served at `/` by the service.

Owns templates, static files and the data behind plots. Decides nothing: every number is `service.database.queries`'s
or `search.analysis`'s. Nothing is loaded from elsewhere, and no script or style stands in a page.
"""

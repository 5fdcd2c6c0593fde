"""REST: an endpoint file a noun, thin routes over `service.database`, one shape for every error."""

"""The engine as a service on Ray: an OpenAI-compatible endpoint fed by the shared n-gram store."""

"""Model configurations, the backbone, draft adapters, and how they are found, checked and loaded."""
